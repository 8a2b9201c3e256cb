//! Reads the configuration file again: every few seconds, and at once when somebody asks for it.
//!
//! The content is compared, not the time of the file or its place: a `ConfigMap` is a symbolic link that is
//! replaced, on a file system that may not report it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::in_force::InForce;
use crate::config::ConfigFile;

/// How often the file is read. A kubelet takes a minute to bring a `ConfigMap`.
const EVERY: Duration = Duration::from_secs(5);
/// An editor may write a file piece by piece. A content counts when it is still the same after this.
const SETTLES_IN: Duration = Duration::from_secs(1);

/// A content, or why it cannot be read.
type Content = Result<Vec<u8>, String>;

/// Offers each content of the file, until it is dropped. If `asked` is notified, it does so at once.
pub(super) async fn follow(path: PathBuf, in_force: Arc<InForce>, asked: Arc<Notify>) {
    let offer = |content: Content, asked: bool| {
        let in_force = Arc::clone(&in_force);
        async move {
            in_force.offer(content.as_deref().map_err(String::as_str), asked).await;
        }
    };
    watch(|| read(path.clone()), offer, asked).await;
}

async fn watch<R, O>(read: impl Fn() -> R, offer: impl Fn(Content, bool) -> O, asked: Arc<Notify>)
where
    R: Future<Output = Content>,
    O: Future<Output = ()>,
{
    let mut last = read().await;
    offer(last.clone(), false).await;
    loop {
        tokio::select! {
            biased;
            () = asked.notified() => {
                last = read().await;
                offer(last.clone(), true).await;
                continue;
            }
            () = sleep(EVERY) => {}
        }
        let mut content = read().await;
        while content != last {
            last = content;
            sleep(SETTLES_IN).await;
            content = read().await;
        }
        offer(content, false).await;
    }
}

async fn read(path: PathBuf) -> Content {
    let read = tokio::task::spawn_blocking(move || ConfigFile::read(&path));
    match read.await {
        Ok(Ok((_, bytes))) => Ok(bytes),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use parking_lot::Mutex;
    use tokio::time::{Instant, advance};

    use super::*;

    /// What was offered, when, and whether somebody had asked.
    type Offers = Arc<Mutex<Vec<(u64, Content, bool)>>>;

    /// A watch of a content that a test replaces.
    fn start() -> (Arc<Mutex<Content>>, Offers, Arc<Notify>) {
        let content = Arc::new(Mutex::new(Ok(b"a".to_vec())));
        let (offers, asked) = (Offers::default(), Arc::new(Notify::new()));
        let (file, log, wake) = (Arc::clone(&content), Arc::clone(&offers), Arc::clone(&asked));
        let begun = Instant::now();
        tokio::spawn(async move {
            let offer = |content: Content, asked: bool| {
                log.lock().push((begun.elapsed().as_secs(), content, asked));
                std::future::ready(())
            };
            watch(|| std::future::ready(file.lock().clone()), offer, wake).await;
        });
        (content, offers, asked)
    }

    async fn seconds(count: u64) {
        for _ in 0..count * 10 {
            advance(Duration::from_millis(100)).await;
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_content_that_is_still_being_written_is_not_offered() {
        let (content, offers, _) = start();
        seconds(4).await;
        for piece in 0..8 {
            *content.lock() = Ok(vec![piece]);
            seconds(1).await;
        }
        let done = Ok(b"done".to_vec());
        content.lock().clone_from(&done);
        seconds(6).await;
        let offers = offers.lock();
        let contents: Vec<_> = offers.iter().map(|(_, content, _)| content.clone()).collect();
        assert_eq!(contents, [Ok(b"a".to_vec()), done]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_has_it_read_at_once_and_a_file_that_is_gone_is_offered_as_such() {
        let (content, offers, asked) = start();
        seconds(2).await;
        *content.lock() = Err("gone".to_owned());
        asked.notify_one();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(offers.lock().last(), Some(&(2, Err("gone".to_owned()), true)));
        let before = offers.lock().len();
        seconds(1).await;
        assert_eq!(offers.lock().len(), before, "asked once, read once");
    }

    #[tokio::test]
    async fn a_config_map_is_followed_through_its_symbolic_links() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["1", "2"] {
            std::fs::create_dir(dir.path().join(version)).unwrap();
            std::fs::write(dir.path().join(version).join("config.yaml"), version).unwrap();
        }
        let path = dir.path().join("config.yaml");
        symlink("1", dir.path().join("..data")).unwrap();
        symlink("..data/config.yaml", &path).unwrap();
        assert_eq!(read(path.clone()).await, Ok(b"1".to_vec()));
        symlink("2", dir.path().join("..new")).unwrap();
        std::fs::rename(dir.path().join("..new"), dir.path().join("..data")).unwrap();
        assert_eq!(read(path.clone()).await, Ok(b"2".to_vec()));
        std::fs::remove_file(dir.path().join("..data")).unwrap();
        assert!(read(path.clone()).await.unwrap_err().contains("No such file"));
    }
}
