//! The identity of a candidate.

use uuid::Uuid;

/// Digits that tell the processes of one pod apart.
const SERIAL: usize = 8;

/// Who a candidate is: the `holderIdentity` that it stores.
///
/// No two processes have the same one. Where the pod is known, it begins with the pod's name and
/// UID, so that a container that was started again recognises the claim of its predecessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: String,
    /// Whether claims of other containers of the pod count as this process's own.
    pod_counts: bool,
}

impl Identity {
    /// The identity of a process on `host`, in the pod with the UID `pod`, if that is known.
    pub fn new(host: &str, pod: Option<&str>) -> Self {
        let name = if let Some(pod) = pod {
            format!("{host}_{pod}_{:08x}", rand::random::<u32>())
        } else {
            format!("{host}_{}", Uuid::new_v4())
        };
        Self { name, pod_counts: true }
    }

    /// A chosen identity. The caller ensures that no other process has it.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), pod_counts: true }
    }

    /// The text that is stored.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// From now on only this process's own claim counts as its own: another process of the pod
    /// has turned out to be alive.
    pub fn forget_pod(&mut self) {
        self.pod_counts = false;
    }

    /// Whether a claim by `holder` is this process's own, or that of another container of the same
    /// pod.
    ///
    /// The kubelet starts a container only when the one before is dead, so such a claim has no
    /// living holder. It cannot be forged without the right to write the lease.
    pub fn owns(&self, holder: &str) -> bool {
        let is_pods = || pod_of(&self.name).is_some_and(|pod| pod_of(holder) == Some(pod));
        self.name == holder || self.pod_counts && is_pods()
    }
}

/// The host and pod UID that an identity begins with, if it has a pod's form.
fn pod_of(identity: &str) -> Option<&str> {
    let (pod, serial) = identity.rsplit_once('_')?;
    let is_serial = serial.len() == SERIAL && serial.bytes().all(|b| b.is_ascii_hexdigit());
    (is_serial && pod.contains('_')).then_some(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_the_hosts_name_and_a_random_uuid() {
        let (one, other) = (Identity::new("node-1", None), Identity::new("node-1", None));
        assert_ne!(one, other);
        let uuid = one.as_str().strip_prefix("node-1_").unwrap();
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"), "{uuid}");
        assert!("89ab".contains(&uuid[19..20]), "{uuid}");
        assert!(one.owns(one.as_str()) && !one.owns(other.as_str()));
    }

    #[test]
    fn containers_of_one_pod_own_each_others_claims_and_nobody_elses() {
        let uid = "2f8a61f6-95a6-4cf3-9a53-0f8a4f4c2c11";
        let before = Identity::new("ostrakon-0", Some(uid));
        let after = Identity::new("ostrakon-0", Some(uid));
        assert_ne!(before, after, "still two processes");
        assert!(before.as_str().starts_with(&format!("ostrakon-0_{uid}_")));
        assert!(after.owns(before.as_str()));
        let mut doubtful = after.clone();
        doubtful.forget_pod();
        assert!(!doubtful.owns(before.as_str()) && doubtful.owns(after.as_str()));
        let other_pod = Identity::new("ostrakon-0", Some("11111111-95a6-4cf3-9a53-0f8a4f4c2c11"));
        let other_host = Identity::new("ostrakon-1", Some(uid));
        let without = Identity::new("ostrakon-0", None);
        for holder in [&other_pod, &other_host, &without] {
            assert!(!after.owns(holder.as_str()) && !holder.owns(after.as_str()), "{holder:?}");
        }
        for holder in ["", "_", "ostrakon-0", &format!("ostrakon-0_{uid}"), "deadbeef"] {
            assert!(!after.owns(holder), "{holder:?}");
        }
    }
}
