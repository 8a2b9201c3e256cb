//! The cluster for `kubectl`: where its kubeconfig is, and what to type.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A kubeconfig file, which goes when this is dropped.
pub(super) struct Kubeconfig {
    path: PathBuf,
}

impl Kubeconfig {
    /// Writes the file, for this user only, where temporary files are.
    pub(super) fn write(content: &str) -> anyhow::Result<Self> {
        let name = format!("ostrakon-demo-{}.kubeconfig", std::process::id());
        let path = std::env::temp_dir().join(name);
        let cannot = || format!("cannot write {}; set TMPDIR to another folder", path.display());
        // Left behind by a process of the same number, which was killed.
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(content.as_bytes())).with_context(cannot)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What to say before the story.
    pub(super) fn at_the_start(&self) -> String {
        format!(
            "Look at it from another terminal; changes are for after the story:\n\n\
             \x20 export KUBECONFIG={}\n\
             \x20 kubectl get nodes\n\
             \x20 kubectl get pods --all-namespaces --watch",
            self.path.display()
        )
    }

    /// What to say after it. `node`: one to try things on.
    pub(super) fn at_the_end(&self, node: &str, metrics: &str) -> String {
        format!(
            "\nThe cluster stays until ctrl-C, and it is yours:\n\n\
             \x20 export KUBECONFIG={}\n\
             \x20 kubectl taint nodes {node} mine=:NoExecute\n\
             \x20 kubectl get events --all-namespaces | grep TaintManager\n\
             \x20 kubectl describe node {node}\n\
             \x20 kubectl drain {node} --ignore-daemonsets\n\
             \x20 curl {metrics}",
            self.path.display()
        )
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        // Nobody is left to tell of a failure.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_there_for_its_owner_and_goes() {
        use std::os::unix::fs::PermissionsExt;
        let file = Kubeconfig::write("apiVersion: v1\n").unwrap();
        let path = file.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(file.at_the_end("n1", "http://x/metrics").contains("kubectl taint nodes n1"));
        drop(file);
        assert!(!path.exists());
    }
}
