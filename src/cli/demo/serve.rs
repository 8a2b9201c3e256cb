//! Access for `kubectl`: a temporary kubeconfig, and commands to try.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A kubeconfig file that is removed when this is dropped.
pub(super) struct Kubeconfig {
    path: PathBuf,
}

impl Kubeconfig {
    /// Writes the file to the temporary directory, readable by this user only.
    pub(super) fn write(content: &str) -> anyhow::Result<Self> {
        let name = format!("ostrakon-demo-{}.kubeconfig", std::process::id());
        let path = std::env::temp_dir().join(name);
        let cannot = || format!("cannot write {}; set TMPDIR to another directory", path.display());
        // A killed process with the same PID may have left one behind.
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(content.as_bytes())).with_context(cannot)?;
        Ok(Self { path })
    }

    /// Path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Instructions before the scenario.
    pub(super) fn at_the_start(&self) -> String {
        format!(
            "Watch it from another terminal. Please change nothing until the scenario has ended:\n\n\
             \x20 export KUBECONFIG={}\n\
             \x20 kubectl get nodes\n\
             \x20 kubectl get pods --all-namespaces --watch",
            self.path.display()
        )
    }

    /// Instructions after the scenario. `node`: one to use in the examples.
    pub(super) fn at_the_end(&self, node: &str, metrics: &str) -> String {
        format!(
            "\nThe cluster runs until Ctrl-C. Try it:\n\n\
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
        // There is nowhere left to report a failure.
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
