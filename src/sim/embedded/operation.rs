//! The properties of a request that fault rules and logs use.

use super::resource::Resource;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Create,
        Self::Update,
        Self::Patch,
        Self::Delete,
        Self::DeleteCollection,
    ];

    /// Its name in roles and audit logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// What is done, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What is done.
    pub verb: Verb,
    /// To which resource; `None` for discovery, health checks and the like.
    pub resource: Option<Resource>,
    /// To which subresource; empty for the object itself.
    pub subresource: String,
    /// In which namespace; empty for all of them, and where there are none.
    pub namespace: String,
    /// To which object; empty for collections and creations.
    pub name: String,
    /// Who asks, by its `User-Agent`; empty if it does not say.
    pub agent: String,
}
