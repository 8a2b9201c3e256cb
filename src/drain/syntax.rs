//! Syntax errors in text that people write.

/// A text that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}, column {column}: {cause}; {remedy}")]
pub struct SyntaxError {
    /// The whole text.
    pub text: String,
    /// Where in it, in characters from 1.
    pub column: usize,
    /// What is wrong there.
    pub cause: String,
    /// What to write instead.
    pub remedy: String,
}

impl SyntaxError {
    /// An error at a byte of `text`, which is at a boundary of characters or beyond the end.
    pub(super) fn new(
        text: &str,
        at: usize,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            text: text.to_owned(),
            column: 1 + text.char_indices().take_while(|(index, _)| *index < at).count(),
            cause: cause.into(),
            remedy: remedy.into(),
        }
    }
}
