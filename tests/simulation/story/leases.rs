//! Someone with permission to write leases deletes or edits ours.

use ostrakon::leader::{LEASE, RELEASED_BY};
use ostrakon::sim::embedded::{DeleteOptions, Part, Resource};
use rand::Rng;
use serde_json::{Value, json};

use super::Story;

const NAMESPACE: &str = "kube-system";

impl Story {
    /// A lease that was given back, so that somebody leads from the beginning.
    pub(super) fn release_lease(&self) {
        let lease = json!({
            "metadata": {
                "name": LEASE, "namespace": NAMESPACE, "annotations": {RELEASED_BY: "somebody"},
            },
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
        });
        let _ = self.cluster.store().insert(Resource::Leases, lease);
    }

    /// Deletes or edits the lease.
    pub(super) fn meddle_with_lease(&mut self) {
        let store = self.cluster.store();
        let what = self.mischief.random_range(0..8);
        if what < 3 {
            let _ = store.delete(Resource::Leases, NAMESPACE, LEASE, &DeleteOptions::default());
            return;
        }
        let other = format!("r{}_0_00000000", self.mischief.random_range(0..2));
        let (field, value) = match what {
            3 => ("holderIdentity", Value::Null),
            4 => ("holderIdentity", json!(other)),
            5 => ("leaseDurationSeconds", json!(1)),
            6 => ("leaseDurationSeconds", Value::Null),
            _ => ("renewTime", json!("2999-01-01T00:00:00.000000Z")),
        };
        let changed = |lease: &Value| {
            let mut lease = lease.clone();
            match (&value, lease["spec"].as_object_mut()) {
                (Value::Null, Some(spec)) => drop(spec.remove(field)),
                (_, Some(spec)) => drop(spec.insert(field.to_owned(), value.clone())),
                (_, None) => {}
            }
            Ok(lease)
        };
        let _ = store.modify(Resource::Leases, NAMESPACE, LEASE, Part::Whole, false, changed);
    }
}
