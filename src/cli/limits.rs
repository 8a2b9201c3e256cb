//! Limits of the system that a process can raise by itself.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

/// Raises the number of files that may be open to what the system allows. The default is often 1024,
/// and each connection takes one.
pub(super) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => debug!(?current, ?maximum, "raised the limit of open files"),
        Err(error) => warn!(%error, ?current, ?maximum,
            "cannot raise the limit of open files; connections may fail when it is reached"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn afterwards_as_many_files_may_be_open_as_the_system_allows() {
        raise_open_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
