//! Free ports on loopback.
//!
//! A port must stay reserved until a component listens on it, and while the component is down, so that
//! other test processes do not take it. So the UDP port of the same number, which nothing else uses, is
//! bound for as long as this process lives.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;

use anyhow::{Result, bail};
use parking_lot::Mutex;

/// Below what systems hand out to outgoing connections by themselves. A component that is down for
/// a restart must find its port free again, and a client that keeps trying to reach it would
/// otherwise be given that very port as its own sooner or later.
const RANGE: Range<u16> = 15_000..32_000;

/// How many ports are tried.
const TRIES: usize = 200;

static KEPT: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// A port that nobody listens on and that no other call returned, in whichever process.
pub fn free_port() -> Result<u16> {
    for _ in 0..TRIES {
        let port = rand::random_range(RANGE);
        let address = (Ipv4Addr::LOCALHOST, port);
        let Ok(number) = UdpSocket::bind(address) else {
            continue;
        };
        if TcpListener::bind(address).is_ok() {
            KEPT.lock().push(number);
            return Ok(port);
        }
    }
    bail!("no free port on 127.0.0.1 after {TRIES} tries between 15000 and 32000");
}
