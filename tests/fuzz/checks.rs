//! What must hold of whatever bytes come instead of an API server's: nothing panics, nothing grows beyond
//! what came, one thing that cannot be read spoils no other, and it makes no difference in which pieces
//! the bytes come.
//!
//! `tests/wire.rs` calls these with bytes that proptest breaks, the targets beside this file with what
//! libFuzzer finds.

use bytes::Bytes;
use ostrakon::cluster::wire::{self, Frames, LONGEST_FRAME, WireError};
use ostrakon::cluster::{DecodeError, PodDecoder, decode_node};
use ostrakon::model::{Node, Pod};
use prost::Message;

/// What is said of one object, read as a pod and as a node.
#[derive(Debug, PartialEq)]
struct Said {
    pod: Result<Option<Pod>, String>,
    node: Result<Node, String>,
}

/// Reads an object both ways. The decoder has read others before; a new one says the same.
fn read(decoder: &mut PodDecoder, object: &Bytes) -> Said {
    let said = |error: DecodeError| {
        assert!(!error.reason.is_empty(), "what is wrong must be said");
        error.to_string()
    };
    let pod = decoder.decode(object).map_err(said);
    assert_eq!(pod, PodDecoder::default().decode(object).map_err(said), "left from another pod");
    if let Ok(Some(pod)) = &pod {
        assert!(!pod.name.is_empty() && !pod.node.as_str().is_empty());
        assert!(pod.name.len() + pod.node.as_str().len() <= object.len());
    }
    Said { pod, node: decode_node(object).map_err(said) }
}

/// What a frame says: its type, and its object read as either kind.
fn event(decoder: &mut PodDecoder, frame: Bytes) -> Result<(Bytes, Said), WireError> {
    let event = wire::Event::decode(frame)?;
    let object = wire::open(&event.object.raw, "Pod");
    let object = object.or_else(|_| wire::open(&event.object.raw, "Node"))?;
    Ok((event.r#type, read(decoder, &object)))
}

/// All that comes of a body.
#[derive(Debug, Default)]
struct Events {
    read: Vec<Result<(Bytes, Said), WireError>>,
    /// Why there can be no more.
    error: Option<WireError>,
    /// Whether it ends within a frame.
    is_cut: bool,
}

/// All that comes of a body that comes in these pieces.
fn events<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Events {
    let (mut frames, mut decoder) = (Frames::default(), PodDecoder::default());
    let mut all = Events::default();
    for piece in pieces {
        frames.push(piece);
        loop {
            match frames.cut() {
                Ok(Some(frame)) => all.read.push(event(&mut decoder, frame)),
                Ok(None) => break,
                Err(error) => return Events { error: Some(error), is_cut: true, ..all },
            }
        }
    }
    Events { is_cut: !frames.is_empty(), ..all }
}

/// The same bytes in pieces of 1 to 300, as the bytes themselves have it.
fn pieces(mut body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut state = body
        .iter()
        .fold(0x9e37_79b9_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let most = if state >> 60 == 0 { 300 } else { 16 };
        let length = 1 + usize::try_from((state >> 32) % most).unwrap_or_default();
        let (piece, rest) = body.split_at(length.min(body.len()));
        body = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The body of a watch: in pieces it says the same as in one.
pub(crate) fn stream(body: &[u8]) {
    let (whole, cut) = (events([body].into_iter()), events(pieces(body)));
    assert_eq!(whole.read, cut.read, "it depends on the pieces");
    assert_eq!(whole.is_cut, cut.is_cut);
    assert_eq!(whole.error.is_some(), cut.error.is_some());
    if let Some(WireError::TooLong { length, begin }) = whole.error {
        assert!(length > LONGEST_FRAME && begin.len() < 8_000);
    }
}

/// A page of a list: an item that cannot be read spoils no other, and no item is longer than the page.
pub(crate) fn list(page: &[u8]) {
    let page = Bytes::copy_from_slice(page);
    for kind in ["PodList", "NodeList", "Status"] {
        let Ok(object) = wire::open(&page, kind) else { continue };
        drop(wire::Status::decode(object.clone()));
        let Ok(list) = wire::List::decode(object) else { continue };
        let length: usize = list.items.iter().map(Bytes::len).sum();
        assert!(length <= page.len(), "{length} bytes of items in {}", page.len());
        let mut decoder = PodDecoder::default();
        for item in &list.items {
            read(&mut decoder, item);
        }
    }
}

/// One object: it says the same by itself, in an envelope, and as an event of a watch.
pub(crate) fn object(object: &[u8]) {
    let object = Bytes::copy_from_slice(object);
    let mut decoder = PodDecoder::default();
    let said = read(&mut decoder, &object);
    let envelope = wire::envelope("Pod", object.to_vec());
    assert_eq!(wire::open(&envelope, "Pod").as_ref(), Ok(&object));
    let mut frames = Frames::default();
    frames.push(&wire::frame("ADDED", envelope));
    let frame = frames.cut().map(Option::unwrap_or_default);
    assert!(frames.is_empty());
    let read = frame.and_then(|frame| event(&mut decoder, frame));
    assert_eq!(read, Ok((Bytes::from_static(b"ADDED"), said)));
}
