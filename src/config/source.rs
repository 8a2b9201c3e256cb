//! The file that a configuration comes from, and the hash that names its content.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};

use super::MOST_BYTES;

/// So many bytes of a SHA-256 name a content. In hexadecimal, `sha256sum` begins with the same.
const HASH_BYTES: usize = 6;

/// A configuration file, as it was read at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// The [hash](content_hash) of its content.
    pub hash: String,
}

impl ConfigFile {
    /// Reads a file, and no more of it than a configuration may have: it may never end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> io::Result<(Self, Vec<u8>)> {
        let mut bytes = Vec::new();
        let most = u64::try_from(MOST_BYTES).unwrap_or(u64::MAX).saturating_add(1);
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
        Ok((Self { path: path.to_owned(), hash: content_hash(&bytes) }, bytes))
    }
}

/// The first 12 hexadecimal digits of the SHA-256 of a file's content.
pub fn content_hash(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in &digest(&SHA256, bytes).as_ref()[..HASH_BYTES] {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_how_sha256sum_begins() {
        // printf abc | sha256sum
        assert_eq!(content_hash(b"abc"), "ba7816bf8f01");
        assert_eq!(content_hash(b""), "e3b0c44298fc");
    }
}
