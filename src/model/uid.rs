//! Object identity.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// The UID of an API object, as the 128 bits of its UUID.
///
/// Names are reused (a `StatefulSet` recreates a pod under the same name); UIDs are not. So the UID, never
/// the name, identifies a pod in the view, in timers and in the backlog. The text form is the API
/// server's, so that it can be used in preconditions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub u128);

/// A text that is not a UUID in its canonical, lower-case form.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a UID: expected a lower-case UUID such as 0a1b2c3d-0000-4000-8000-000000000001"
)]
pub struct ParseUidError(String);

impl FromStr for Uid {
    type Err = ParseUidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uuid = Uuid::try_parse(text).ok();
        // Its other forms would not come back as the API server wrote them.
        let uuid =
            uuid.filter(|uuid| uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text);
        let uuid = uuid.ok_or_else(|| ParseUidError(text.chars().take(64).collect()))?;
        Ok(Self(uuid.as_u128()))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_u128(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_the_round_trip_byte_for_byte() {
        for text in [
            "00000000-0000-0000-0000-000000000000",
            "0a1b2c3d-4e5f-4677-8899-aabbccddeeff",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
        ] {
            assert_eq!(text.parse::<Uid>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_text_that_would_not_come_back_the_same_is_refused() {
        for text in [
            "",
            "web-0",
            "0A1B2C3D-4E5F-4677-8899-AABBCCDDEEFF",
            "0a1b2c3d4e5f46778899aabbccddeeff",
            "0a1b2c3d-4e5f-4677-8899-aabbccddeef",
            "0a1b2c3d_4e5f-4677-8899-aabbccddeeff",
            "0a1b2c3d-4e5f-4677-8899-aabbccddeeff ",
        ] {
            assert!(text.parse::<Uid>().is_err(), "{text:?} was taken");
        }
    }
}
