//! The users of the API server. Each actor has its own user, so that the audit log attributes requests.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::process::write_file;

/// An actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    /// May everything; what tests act and look as.
    Admin,
    /// ostrakon's ServiceAccount: has what `deploy/` gives it.
    Ostrakon,
    /// The ServiceAccount of a dry run: has what `deploy/kustomize/dry-run` gives it.
    DryRun,
    ControllerManager,
    Scheduler,
    /// All kubelets, real or hollow. May everything.
    Kubelets,
    /// The built-in taint eviction by itself, see [`super::Bed::start_reference`].
    Reference,
    /// Known to the API server, and has no rights at all.
    Stranger,
}

impl User {
    pub const ALL: [Self; 8] = [
        Self::Admin,
        Self::Ostrakon,
        Self::DryRun,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubelets,
        Self::Reference,
        Self::Stranger,
    ];

    /// The user's name, as the audit log has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Ostrakon => "system:serviceaccount:ostrakon-system:ostrakon",
            Self::DryRun => "system:serviceaccount:ostrakon-dry-run:ostrakon-dry-run",
            Self::ControllerManager => "system:kube-controller-manager",
            Self::Scheduler => "system:kube-scheduler",
            Self::Kubelets => "kubelets",
            Self::Reference => "reference",
            Self::Stranger => "stranger",
        }
    }

    fn groups(self) -> &'static str {
        match self {
            // All controllers run under the manager's own name here, and its bootstrap role
            // expects that each has an account of its own.
            Self::Admin | Self::ControllerManager | Self::Kubelets | Self::Reference => {
                "system:masters"
            }
            Self::Ostrakon => "system:serviceaccounts,system:serviceaccounts:ostrakon-system",
            Self::DryRun => "system:serviceaccounts,system:serviceaccounts:ostrakon-dry-run",
            Self::Scheduler | Self::Stranger => "",
        }
    }

    fn short(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Ostrakon => "ostrakon",
            Self::DryRun => "dry-run",
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
            Self::Kubelets => "kubelets",
            Self::Reference => "reference",
            Self::Stranger => "stranger",
        }
    }
}

/// The users' tokens and kubeconfig files.
#[derive(Debug)]
pub struct Users {
    folder: PathBuf,
    secret: u64,
}

impl Users {
    /// New tokens for all users; files are written to `folder`.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), secret: rand::random() }
    }

    pub fn token(&self, user: User) -> String {
        format!("{}-{:016x}", user.short(), self.secret)
    }

    /// Writes the file for `--token-auth-file`.
    pub fn write_token_file(&self) -> Result<PathBuf> {
        let mut lines = String::new();
        for user in User::ALL {
            let (name, groups) = (user.name(), user.groups());
            writeln!(lines, "{},{name},{},\"{groups}\"", self.token(user), user.short())?;
        }
        let path = self.folder.join("tokens.csv");
        write_file(&path, &lines)?;
        Ok(path)
    }

    /// Writes a kubeconfig under `label` with which `user` talks to `server`.
    pub fn write_kubeconfig(
        &self,
        label: &str,
        user: User,
        server: &str,
        ca: Option<&Path>,
    ) -> Result<PathBuf> {
        let cluster = match ca {
            Some(ca) => json!({ "server": server, "certificate-authority": ca }),
            None => json!({ "server": server }),
        };
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "bed", "cluster": cluster }],
            "users": [{ "name": user.short(), "user": { "token": self.token(user) } }],
            "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": user.short() } }],
            "current-context": "bed",
        });
        let path = self.folder.join(format!("{label}-{}.kubeconfig", user.short()));
        write_file(&path, &serde_json::to_string_pretty(&kubeconfig)?)?;
        Ok(path)
    }
}

/// Writes a key with which the API server signs and checks ServiceAccount tokens, and returns its
/// path. The file holds the private and the public half, since the flag for checking reads only
/// the latter from an elliptic key.
pub fn write_service_account_key(folder: &Path) -> Result<PathBuf> {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

    /// `SubjectPublicKeyInfo` up to the point itself: id-ecPublicKey on prime256v1, and a bit
    /// string of 65 bytes.
    const PUBLIC_KEY_HEAD: [u8; 26] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08,
        0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];

    let random = SystemRandom::new();
    let failed = |_| anyhow::anyhow!("could not make a key for ServiceAccount tokens");
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(failed)?;
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random)
        .map_err(|rejected| anyhow::anyhow!("the new key was rejected: {rejected}"))?;
    let public = [&PUBLIC_KEY_HEAD, pair.public_key().as_ref()].concat();
    let blocks =
        [pem::Pem::new("PRIVATE KEY", document.as_ref()), pem::Pem::new("PUBLIC KEY", public)];
    let path = folder.join("service-account.key");
    write_file(&path, &pem::encode_many(&blocks))?;
    Ok(path)
}
