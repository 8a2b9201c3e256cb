//! Iterates over the fields of a protobuf message without building it.
//!
//! A generated message collects every element of a list before its length can be limited: a condition of
//! two bytes becomes two hundred, so one object of the maximum size would cost a hundred times its size.
//! Here a field is a slice of the body, and the caller stops when it has enough.

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Value<'a> {
    /// A varint.
    Number(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// A number of fixed width, of which none is read here.
    Fixed,
}

impl<'a> Value<'a> {
    /// Its bytes, if it has any.
    pub(in crate::cluster) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Number(_) | Self::Fixed => None,
        }
    }

    /// Its number as `int64`, if it is one.
    #[allow(clippy::cast_possible_wrap, reason = "protobuf writes negative numbers so")]
    pub(in crate::cluster) fn number(self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(number as i64),
            Self::Bytes(_) | Self::Fixed => None,
        }
    }
}

/// The message breaks off or is mixed up at this point; what follows cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) struct Malformed;

/// The fields of a message in their order, each with its number. After [`Malformed`] it ends.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct Fields<'a> {
    rest: &'a [u8],
}

/// The fields of this message.
pub(in crate::cluster) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

/// The values of the field with this number that have bytes, up to where the message breaks.
pub(in crate::cluster) fn all(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> + Clone {
    fields(message).filter_map(move |field| match field {
        Ok((found, Value::Bytes(bytes))) if found == number => Some(bytes),
        _ => None,
    })
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Malformed)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| Malformed)?;
        if number == 0 {
            return Err(Malformed);
        }
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_their_order_with_their_numbers() {
        // 1: varint 300, 2: "ab", 3: fixed32, 4: fixed64, 22: empty, 1: -1.
        let message = [
            &[0x08, 0xac, 0x02][..],
            &[0x12, 2, b'a', b'b'],
            &[0x1d, 1, 2, 3, 4],
            &[0x21, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xb2, 0x01, 0],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ]
        .concat();
        let read: Vec<_> = fields(&message).map(Result::unwrap).collect();
        assert_eq!(
            read,
            [
                (1, Value::Number(300)),
                (2, Value::Bytes(b"ab")),
                (3, Value::Fixed),
                (4, Value::Fixed),
                (22, Value::Bytes(b"")),
                (1, Value::Number(u64::MAX)),
            ]
        );
        assert_eq!(read[5].1.number(), Some(-1));
        assert_eq!(all(&message, 2).collect::<Vec<_>>(), [b"ab"]);
    }

    #[test]
    fn what_is_cut_or_mixed_up_is_said_once_and_nothing_is_read_behind_it() {
        for message in [
            &[0x12, 5, b'a'][..],   // longer than what is there
            &[0x08],                // a number without its bytes
            &[0x00, 0x12, 1, b'a'], // field number 0
            &[0x0b, 0x12, 1, b'a'], // a group
            &[0x1d, 1],             // a fixed number that is cut
            &[0xff; 11],            // a number without an end
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], // an absurd length
        ] {
            let read: Vec<_> = fields(message).collect();
            assert_eq!(read, [Err(Malformed)], "{message:?}");
        }
        let first = fields(&[0x12, 1, b'a', 0x00]).collect::<Vec<_>>();
        assert_eq!(first, [Ok((2, Value::Bytes(b"a"))), Err(Malformed)]);
    }
}
