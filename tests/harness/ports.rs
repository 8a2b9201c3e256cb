//! Free ports on loopback.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use anyhow::{Result, bail};
use parking_lot::Mutex;

/// Below what systems hand out to outgoing connections by themselves. A component that is down for
/// a restart must find its port free again, and a client that keeps trying to reach it would
/// otherwise be given that very port as its own sooner or later.
const RANGE: Range<u16> = 15_000..32_000;

/// How many ports are tried.
const TRIES: usize = 200;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that nobody listens on and that no earlier call returned.
pub fn free_port() -> Result<u16> {
    for _ in 0..TRIES {
        let port = rand::random_range(RANGE);
        if GIVEN.lock().insert(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 after {TRIES} tries between 15000 and 32000");
}
