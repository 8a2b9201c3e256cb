//! The lease that a node renews to show that it is alive.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use rand::Rng;
use serde_json::{Value, json};

/// Where the leases of nodes live.
pub(super) const NAMESPACE: &str = "kube-node-lease";

/// A lease is good for that many renewals.
const RENEWALS: u32 = 4;

/// By how much a renewal may be late, as a part of the interval: many nodes that start together
/// drift apart.
const JITTER: f64 = 0.04;

/// A lease for the node, owned by it so that it goes when the node goes.
pub(super) fn lease(node: &str, node_uid: &str, interval: Duration, now: Timestamp) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.to_owned(),
                uid: node_uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(duration_seconds(interval)),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

/// The merge patch that renews it. It names the owner as well, for a node that was re-created.
pub(super) fn renewal(node: &str, node_uid: &str, interval: Duration, now: Timestamp) -> Value {
    json!({
        "metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
        ]},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": duration_seconds(interval),
            "renewTime": format!("{now:.6}"),
        }
    })
}

/// Time from one renewal to the next.
pub(super) fn pause(interval: Duration, rng: &mut impl Rng) -> Duration {
    interval.mul_f64(1.0 + JITTER * rng.random::<f64>())
}

/// Time from the registration to the first renewal: anywhere in the interval, so that nodes that
/// start together do not renew together.
pub(super) fn first_pause(interval: Duration, rng: &mut impl Rng) -> Duration {
    interval.mul_f64(rng.random::<f64>())
}

fn duration_seconds(interval: Duration) -> i32 {
    let seconds = interval.saturating_mul(RENEWALS).as_secs().max(1);
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const TEN: Duration = Duration::from_secs(10);

    #[test]
    fn a_lease_lasts_four_renewals_and_belongs_to_its_node() {
        let now = "2026-01-01T12:00:00.123456789Z".parse().unwrap();
        let lease = lease("n1", "uid-1", TEN, now);
        let spec = lease.spec.unwrap();
        assert_eq!(spec.lease_duration_seconds, Some(40));
        assert_eq!(spec.holder_identity.as_deref(), Some("n1"));
        let owners = lease.metadata.owner_references.unwrap();
        assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("Node", "uid-1"));

        let renewal = renewal("n1", "uid-1", TEN, now);
        assert_eq!(renewal["spec"]["renewTime"], "2026-01-01T12:00:00.123456Z");
        assert_eq!(renewal["spec"]["leaseDurationSeconds"], 40);
    }

    #[test]
    fn a_very_short_interval_still_gives_a_legal_lease() {
        assert_eq!(duration_seconds(Duration::from_millis(100)), 1);
    }

    #[test]
    fn renewals_come_at_the_interval_or_up_to_four_percent_later() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..1000 {
            let pause = pause(TEN, &mut rng);
            assert!(pause >= TEN && pause <= TEN.mul_f64(1.04), "{pause:?}");
            assert!(first_pause(TEN, &mut rng) < TEN);
        }
    }
}
