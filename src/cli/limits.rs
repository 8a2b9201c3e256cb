//! Resource limits that the process raises at startup.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

/// Raises the soft limit of open files to the hard limit. The default is often 1024, and each
/// connection needs one.
pub(super) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => debug!(?current, ?maximum, "raised the open file limit"),
        Err(error) => warn!(%error, ?current, ?maximum,
            "cannot raise the open file limit; connections fail once it is reached"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_is_raised_to_the_hard_limit() {
        raise_open_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
