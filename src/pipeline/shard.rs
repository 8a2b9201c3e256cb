//! Assigns nodes to shards.
//!
//! Nodes and pods are sharded by the *node's* name, so that "the taints of node N changed" and "a pod on
//! node N changed" are handled one after the other. The hash is FNV-1a, which is the same in every process
//! and version, so that another replica could own a shard. It must never be replaced by a seeded hash.

/// How many shards there are. Upstream's taint-eviction controller has as many update workers.
pub const SHARDS: usize = 8;

const OFFSET_BASIS: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;

/// The shard of a node, in `0..SHARDS`: the 32-bit FNV-1a hash of the name's bytes modulo
/// [`SHARDS`], as upstream's taint-eviction controller computes it.
///
/// ```
/// assert_eq!(ostrakon::pipeline::shard_of("worker-0"), 2);
/// ```
pub fn shard_of(node_name: &str) -> usize {
    fnv1a(node_name.as_bytes()) as usize % SHARDS
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(OFFSET_BASIS, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_upstreams_hash_and_shard() {
        let vectors = [
            ("", 0x811c_9dc5, 5),
            ("node1", 0x0f4e_2874, 4),
            ("node2", 0x124e_2d2d, 5),
            ("node-0", 0x53c4_31f0, 0),
            ("node-1", 0x54c4_3383, 3),
            ("node-2", 0x55c4_3516, 6),
            ("testnode-1", 0x998c_bc23, 3),
            ("worker-0", 0x72f9_309a, 2),
            ("worker-17", 0xab49_deee, 6),
        ];
        for (name, hash, shard) in vectors {
            assert_eq!(fnv1a(name.as_bytes()), hash, "hash of {name:?}");
            assert_eq!(shard_of(name), shard, "shard of {name:?}");
        }
    }

    #[test]
    fn numbered_nodes_spread_evenly() {
        let mut nodes = [0; SHARDS];
        for i in 0..5_000 {
            nodes[shard_of(&format!("node-{i}"))] += 1;
        }
        assert_eq!(nodes.iter().sum::<u32>(), 5_000);
        for count in nodes {
            assert!((624..=626).contains(&count), "{nodes:?}");
        }
    }
}
