//! Lists in JSON of which a few elements are kept.
//!
//! Whoever writes an object chooses how long its lists are. An element of ten bytes becomes a hundred
//! once it is read, and a node has hundreds of pods: so what is not needed is dropped while it is read.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// So many elements of a list are kept. No object that means well has as many.
pub(super) const MOST: usize = 1_000;
/// So many bytes of a text are kept.
const LONGEST: usize = 1 << 10;

/// What is kept of an element of a list.
pub(super) trait Pick: Sized {
    /// The element.
    type Element;

    /// What is kept of it, if anything is.
    fn pick(element: Self::Element) -> Option<Self>;
}

/// A map of texts: labels or annotations. The end of a long text is cut off.
#[derive(Default)]
pub(super) struct Texts(pub(super) Vec<(Arc<str>, Arc<str>)>);

/// The first elements that are wanted.
pub(super) struct Few<P>(pub(super) Vec<P>);

/// The first element that is wanted.
pub(super) struct First<P>(pub(super) Option<P>);

impl<P> Default for Few<P> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<P> Default for First<P> {
    fn default() -> Self {
        Self(None)
    }
}

/// The beginning of a text.
pub(super) fn cut(text: Arc<str>) -> Arc<str> {
    if text.len() <= LONGEST { text } else { begin(&text).into() }
}

fn begin(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_unit<E>(self) -> Result<Texts, E> {
                Ok(Texts::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut kept = Vec::new();
                while kept.len() < MOST {
                    let Some((key, value)) = map.next_entry::<Cow<'_, str>, Cow<'_, str>>()? else {
                        return Ok(Texts(kept));
                    };
                    kept.push((Arc::from(begin(&key)), Arc::from(begin(&value))));
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Texts(kept))
            }
        }

        deserializer.deserialize_any(Entries)
    }
}

/// Takes the picked elements of a list until `take` has enough, and reads over the rest.
struct Elements<P, F>(F, PhantomData<P>);

impl<'de, P, F> Visitor<'de> for Elements<P, F>
where
    P: Pick,
    P::Element: Deserialize<'de>,
    F: FnMut(P) -> bool,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element()? {
            if P::pick(element).is_some_and(&mut self.0) {
                break;
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

impl<'de, P: Pick> Deserialize<'de> for Few<P>
where
    P::Element: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut kept = Vec::new();
        let take = |picked: P| {
            kept.push(picked);
            kept.len() == MOST
        };
        deserializer.deserialize_any(Elements(take, PhantomData))?;
        Ok(Self(kept))
    }
}

impl<'de, P: Pick> Deserialize<'de> for First<P>
where
    P::Element: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut first = None;
        let take = |picked: P| {
            first = Some(picked);
            true
        };
        deserializer.deserialize_any(Elements(take, PhantomData))?;
        Ok(Self(first))
    }
}
