//! For how long the API server is waited for at the start, and what is said meanwhile. No I/O.

use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::RequestError;

/// A server that has just come up refuses for a while what it grants: it has not read yet who may
/// do what (kube-apiserver 1.36: 403 for two seconds). For so long after it could not be reached, or
/// could not answer, its refusals are not final; nor are they for so long after the start of this
/// process, if the server says that it is not ready.
const SETTLING: Duration = Duration::from_secs(30);
/// Whom the API server takes for a request without credentials.
const ANONYMOUS: &str = "system:anonymous";
/// Least time between two lines that it is waited for.
const QUIET: Duration = Duration::from_secs(30);

/// What the answer to a question for a right means for the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The right is there.
    Granted,
    /// The server does not grant it, or does not know the user.
    Refused,
    /// The user may not check permissions. The API server may still grant all others.
    MayNotAsk,
    /// It was refused, and the server says that it is not ready.
    NotReady,
    /// There was no answer, or that there can be none now. That passes.
    Ailing,
    /// This will be the same the next time.
    Final,
}

impl Meaning {
    pub(super) fn of(answer: &Result<bool, RequestError>) -> Self {
        match answer {
            Ok(true) => Self::Granted,
            Ok(false) => Self::Refused,
            Err(RequestError::Status(answer)) => match answer.code {
                // Nobody, or the word of something in between, is not about this one right.
                403 if answer.reason == "Forbidden" && !answer.message.contains(ANONYMOUS) => {
                    Self::MayNotAsk
                }
                401 | 403 => Self::Refused,
                429 | 500..=599 => Self::Ailing,
                _ => Self::Final,
            },
            Err(RequestError::Timeout(_) | RequestError::Transport(_)) => Self::Ailing,
            Err(RequestError::Credentials(error)) if error.passes => Self::Ailing,
            Err(
                RequestError::WrongPeer(_)
                | RequestError::Credentials(_)
                | RequestError::Body(_)
                | RequestError::TooLarge(_)
                | RequestError::NotLeading
                | RequestError::Paused
                | RequestError::DryRun,
            ) => Self::Final,
        }
    }
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// It is waited for.
    Waits,
    /// It was waited for, and answers.
    Answers,
}

/// The wait for an API server, of all questions together.
#[derive(Debug)]
pub(super) struct Patience {
    begin: Instant,
    /// For how long it is waited for from the beginning.
    wait: Duration,
    /// When it could not be reached, or could not answer, for the last time.
    ailed: Option<Instant>,
    /// When it was last said that it is waited for.
    said: Option<Instant>,
    /// Whether the last that was said is that it is waited for.
    waits: bool,
}

impl Patience {
    /// Begins to count.
    pub(super) fn new(wait: Duration, now: Instant) -> Self {
        Self { begin: now, wait, ailed: None, said: None, waits: false }
    }

    /// For how long it has been waited for; nothing if that was not needed.
    pub(super) fn waited(&self, now: Instant) -> Duration {
        self.said.map(|_| now - self.begin).unwrap_or_default()
    }

    /// Within which time the question is to be asked again; `None` if this answer counts. And what is
    /// to be said of it.
    pub(super) fn hear(
        &mut self,
        meaning: Meaning,
        now: Instant,
    ) -> (Option<Duration>, Option<Notice>) {
        let left = self.wait.saturating_sub(now - self.begin);
        match meaning {
            Meaning::Granted => {
                let waited = std::mem::take(&mut self.waits);
                (None, waited.then_some(Notice::Answers))
            }
            Meaning::Ailing | Meaning::NotReady if !left.is_zero() => {
                if meaning == Meaning::Ailing {
                    self.ailed = Some(now);
                } else if now - self.begin >= SETTLING {
                    return (None, None);
                }
                let is_news = self.said.is_none_or(|said| now - said >= QUIET);
                if is_news {
                    (self.said, self.waits) = (Some(now), true);
                }
                (Some(left), is_news.then_some(Notice::Waits))
            }
            Meaning::Refused | Meaning::MayNotAsk
                if self.ailed.is_some_and(|ailed| now - ailed < SETTLING) =>
            {
                ((!left.is_zero()).then_some(left), None)
            }
            Meaning::Ailing
            | Meaning::Refused
            | Meaning::MayNotAsk
            | Meaning::NotReady
            | Meaning::Final => (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(300);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn it_is_said_at_first_and_then_every_half_minute_and_once_when_it_answers() {
        let begin = Instant::now();
        let mut patience = Patience::new(WAIT, begin);
        let said: Vec<_> = (0..100)
            .filter(|at| {
                let (again, notice) = patience.hear(Meaning::Ailing, begin + secs(*at));
                assert_eq!(again, Some(WAIT - secs(*at)));
                notice == Some(Notice::Waits)
            })
            .collect();
        assert_eq!(said, [0, 30, 60, 90]);
        let now = begin + secs(100);
        assert_eq!(patience.hear(Meaning::Granted, now), (None, Some(Notice::Answers)));
        assert_eq!(patience.hear(Meaning::Granted, now), (None, None));
        // What comes and goes is not told of each time.
        assert_eq!(patience.hear(Meaning::Ailing, now), (Some(secs(200)), None));
        assert_eq!(patience.hear(Meaning::Granted, now), (None, None));
    }

    #[test]
    fn without_a_wait_nothing_is_asked_again_or_said() {
        let begin = Instant::now();
        let mut patience = Patience::new(Duration::ZERO, begin);
        for meaning in [Meaning::Ailing, Meaning::Refused, Meaning::Final, Meaning::Granted] {
            assert_eq!(patience.hear(meaning, begin), (None, None), "{meaning:?}");
        }
        assert_eq!(patience.waited(begin + secs(15)), Duration::ZERO);
    }

    #[test]
    fn a_refusal_counts_unless_the_server_has_just_come_up() {
        let begin = Instant::now();
        let mut patience = Patience::new(WAIT, begin);
        assert_eq!(patience.hear(Meaning::Refused, begin), (None, None));
        patience.hear(Meaning::Ailing, begin);
        assert_eq!(patience.hear(Meaning::Refused, begin + secs(29)).0, Some(WAIT - secs(29)));
        assert_eq!(patience.hear(Meaning::Final, begin + secs(29)), (None, None));
        assert_eq!(patience.hear(Meaning::Refused, begin + SETTLING), (None, None));
        patience.hear(Meaning::Ailing, begin + secs(299));
        assert_eq!(patience.hear(Meaning::Refused, begin + WAIT), (None, None));
    }
}
