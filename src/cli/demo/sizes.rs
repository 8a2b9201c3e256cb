//! Limits on the size of the demo's cluster.

use super::fixtures::SCENARIO_NODES;

/// The scenario needs this many.
const FEWEST_NODES: usize = 5;
/// A larger cluster takes minutes to start on a small machine; a demo should be short.
const MOST_NODES: usize = 1_000;
/// For the same reason.
const MOST_PODS: usize = 50_000;
/// The nodes of the scenario need this many.
const FEWEST_PODS: usize = 5 * SCENARIO_NODES;
/// A node accepts 110 pods; replacements of evicted pods need some room.
const MOST_PODS_PER_NODE: usize = 100;
/// Pods per node, unless their number is given.
const PODS_PER_NODE: usize = 30;
/// Memory per pod, in all caches and histories together; 23 KiB were measured.
const BYTES_PER_POD: usize = 32 * 1024;

/// Parses a number of nodes.
pub(super) fn nodes(text: &str) -> Result<usize, String> {
    let number = number(text)?;
    if (FEWEST_NODES..=MOST_NODES).contains(&number) {
        return Ok(number);
    }
    Err(format!("write {FEWEST_NODES} to {MOST_NODES} nodes"))
}

/// Parses a number of pods.
pub(super) fn pods(text: &str) -> Result<usize, String> {
    let number = number(text)?;
    if (FEWEST_PODS..=MOST_PODS).contains(&number) {
        return Ok(number);
    }
    Err(format!("write {FEWEST_PODS} to {MOST_PODS} pods"))
}

fn number(text: &str) -> Result<usize, String> {
    let digits = text.replace(['_', ','], "");
    digits.parse().map_err(|_| "write a whole number, such as 6000".to_owned())
}

/// The number of pods in the cluster. `memory`: free bytes, if known.
///
/// # Errors
/// They do not fit. The message says how many do.
pub(super) fn fitting(
    nodes: usize,
    pods: Option<usize>,
    memory: Option<usize>,
) -> Result<usize, String> {
    let wanted = pods.unwrap_or(nodes * PODS_PER_NODE);
    let most = nodes * MOST_PODS_PER_NODE;
    if wanted > most {
        return Err(format!(
            "{wanted} pods do not fit on {nodes} nodes; use at most --pods {most} or at least \
             --nodes {}",
            wanted.div_ceil(MOST_PODS_PER_NODE)
        ));
    }
    let free = memory.unwrap_or(usize::MAX);
    if wanted.saturating_mul(BYTES_PER_POD) > free {
        return Err(format!(
            "{wanted} pods need about {} MiB of memory, but {} MiB are free; use at most --pods {}",
            (wanted * BYTES_PER_POD) >> 20,
            free >> 20,
            free / BYTES_PER_POD
        ));
    }
    Ok(wanted)
}

/// Free memory of this machine and this container, in bytes; `None` if unknown.
pub(super) fn free_memory() -> Option<usize> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = || {
        let text = read("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024)
    };
    // Most memory used by a container is page cache, which can be reclaimed.
    let container = || read("/sys/fs/cgroup/memory.max")?.trim().parse().ok();
    [machine(), container()].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_impossible_is_refused_with_the_bound() {
        assert_eq!(nodes("200"), Ok(200));
        assert_eq!(pods("6,000"), Ok(6000));
        assert!(nodes("0").unwrap_err().contains("5 to 1000"));
        assert!(pods("999999999").unwrap_err().contains("50000"));
        assert!(pods("many").unwrap_err().contains("whole number"));
    }

    #[test]
    fn pods_must_fit_on_the_nodes_and_into_memory() {
        assert_eq!(fitting(200, None, None), Ok(6000));
        assert_eq!(fitting(10, Some(1000), Some(1 << 30)), Ok(1000));
        assert!(fitting(10, Some(1001), None).unwrap_err().contains("--nodes 11"));
        let refusal = fitting(200, None, Some(100 << 20)).unwrap_err();
        assert!(refusal.contains("at most --pods 3200"), "{refusal}");
    }
}
