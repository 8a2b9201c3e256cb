//! Twin runs for P8: the same calm story is played with and without the hostile kubelet and tenant. The pods of
//! everybody else must be evicted in both, at the same time but for what a calm story allows.
//!
//! An eviction that is a little later can change the rest of a story: a name is still taken, or another pod is
//! picked. So the twins are compared up to the first step that finds other pods.

use std::collections::BTreeMap;

use ostrakon::sim::embedded::{Resource, Selector};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::super::mutants::Broken;
use super::super::observer::{Fate, NthPod};
use super::hostile::{self, Hostile};
use super::{LATE, Story, Subject};

/// When a step began, and the names of the pods that it found.
pub(super) type Scene = (f64, Vec<String>);

/// One of the twins, after its end.
struct Twin {
    calm: bool,
    scenes: Vec<Scene>,
    fates: BTreeMap<NthPod, Fate>,
    /// The last version of the store: how much was written.
    version: u64,
}

/// What the comparison of two twins came to.
pub(crate) struct Compared {
    /// Evictions that are in both.
    pub(crate) evictions: usize,
    /// Writes that only the hostile parties caused.
    pub(crate) hostile_writes: u64,
}

/// Plays a story with and without hostile parties, and compares them. `None` if the story is not calm.
pub(crate) fn twins(seed: u64) -> Option<Result<Compared, String>> {
    let peaceful = match twin(seed, false) {
        Ok(twin) if !twin.calm => return None,
        Ok(twin) => twin,
        Err(error) => return Some(Err(error)),
    };
    Some(twin(seed, true).and_then(|harassed| {
        let parted = parting(&peaceful.scenes, &harassed.scenes);
        let evictions = compare(&peaceful.fates, &harassed.fates, parted)?;
        compare(&harassed.fates, &peaceful.fates, parted)?;
        let hostile_writes = harassed.version.saturating_sub(peaceful.version);
        Ok(Compared { evictions, hostile_writes })
    }))
}

fn twin(seed: u64, is_hostile: bool) -> Result<Twin, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut story = Story::new(Subject::Taints, seed, Broken::Nothing);
        story.hostile = is_hostile.then(|| Hostile::new(StdRng::seed_from_u64(seed)));
        if story.calm {
            story.run().await?;
        }
        let fates = story.observer().fates();
        let version = story.cluster.store().version();
        Ok(Twin { calm: story.calm, scenes: std::mem::take(&mut story.scenes), fates, version })
    })
}

impl Story {
    /// Notes what the next step finds.
    pub(super) fn note_scene(&mut self) {
        let Ok(all) = Selector::parse(Resource::Pods, None, "", "") else { return };
        let mut pods = self.cluster.store().select(Resource::Pods, &all);
        pods.retain(|pod| pod["metadata"]["namespace"] != hostile::TENANT);
        let name = |pod: &std::sync::Arc<serde_json::Value>| pod["metadata"]["name"].to_string();
        self.scenes.push((self.now(), pods.iter().map(name).collect()));
    }
}

/// When the twins begin to be different stories.
fn parting(one: &[Scene], other: &[Scene]) -> f64 {
    let differs = |((_, here), (_, there)): &(&Scene, &Scene)| here != there;
    let first = one.iter().zip(other).find(differs);
    first.map_or(f64::INFINITY, |((here, _), (there, _))| here.min(*there))
}

/// Each pod that is evicted in the one is gone in the other by then, or no later than a calm story allows.
/// Returns the number of pods that were evicted in both.
fn compare(
    one: &BTreeMap<NthPod, Fate>,
    other: &BTreeMap<NthPod, Fate>,
    parted: f64,
) -> Result<usize, String> {
    let mut both = 0;
    for (pod, fate) in one {
        let Some(end) = fate.end.filter(|end| fate.evicted && *end < parted) else { continue };
        let twin = other.get(pod);
        if !twin.and_then(|twin| twin.end).is_some_and(|there| there <= end + LATE) {
            return Err(format!(
                "P8: {pod:?} is evicted at {end:.3} in one twin; in the other: {twin:?}"
            ));
        }
        both += usize::from(twin.is_some_and(|twin| twin.evicted));
    }
    Ok(both)
}

#[test]
fn twins_that_differ_are_told_apart() {
    let fates = |end, evicted| BTreeMap::from([(("web".to_owned(), 0), Fate { end, evicted })]);
    let one = fates(Some(10.0), true);
    let compared = |other: &BTreeMap<_, _>| compare(&one, other, f64::INFINITY);
    assert_eq!(compared(&fates(Some(10.0 + LATE), true)), Ok(1));
    assert_eq!(compared(&fates(Some(11.0), false)), Ok(0), "its owner was faster");
    for other in [fates(Some(10.1 + LATE), true), fates(None, false), BTreeMap::new()] {
        assert!(compared(&other).is_err(), "{other:?}");
    }
    assert_eq!(compare(&one, &BTreeMap::new(), 9.0), Ok(0), "they have parted before");
}
