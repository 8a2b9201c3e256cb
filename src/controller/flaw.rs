//! What is wrong with a controller on purpose, so that a check can show that it is able to fail.

/// A flaw inside of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// What was armed once is carried out, whatever is known by now.
    TrustsTimers,
    /// What failed is not tried again.
    ForgetsFailures,
    /// Leadership is checked when work is taken up, and not when it is written.
    WritesUngated,
}
