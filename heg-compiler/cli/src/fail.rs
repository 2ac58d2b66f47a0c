//! Errors of `hegc` and `cargo xtask`: the party that can act on it (the exit status), the event (the chain of causes)
//! and the remedy (one hint). Commands attach a [`Fail`] if they know it; anything else that reaches `main` is an
//! environment error if it came from the operating system, and a bug of ours if not.

use std::fmt;
use std::process::ExitCode;

/// The party that can act on an error. Decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A check ran and found something: a failing test, a finding of `tidy`, a wrong answer.
    Check,
    /// The user's input: an argument, or a file that the user named.
    Input,
    /// The machine: a missing program, the network, the disk.
    Environment,
    /// A program that we started ended with this status, which already follows the exit contract.
    Child(u8),
}

/// An error with its cause and, if there is one sensible next action, a hint.
#[derive(Debug)]
pub struct Fail {
    cause: Cause,
    message: String,
    hint: Option<String>,
}

impl Fail {
    /// Makes the error for a check that found something.
    pub fn check(message: impl Into<String>) -> Self {
        Self::new(Cause::Check, message)
    }

    /// Makes the error for invalid input of the user.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(Cause::Input, message)
    }

    /// Makes the error for a machine that lacks something.
    pub fn environment(message: impl Into<String>) -> Self {
        Self::new(Cause::Environment, message)
    }

    /// Makes the error for a failed child process. `status` is its exit status, which follows the exit contract.
    pub fn child(status: Option<i32>, message: impl Into<String>) -> Self {
        let cause = match status {
            Some(code @ (2 | 3 | 4 | 70)) => Cause::Child(u8::try_from(code).unwrap_or(BUG)),
            _ => Cause::Check,
        };
        Self::new(cause, message)
    }

    /// The error with a hint: one sensible next action.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self {
            cause,
            message: message.into(),
            hint: None,
        }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fail {}

/// Ends a program: returns the status that its command chose, or prints the error and returns its status.
pub fn conclude(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprint!("{}", render(&error));
        ExitCode::from(exit_status(&error))
    })
}

/// The exit status of `error` in the exit contract.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Fail>().map(|fail| fail.cause) {
        Some(Cause::Check) => 1,
        Some(Cause::Input) => 2,
        Some(Cause::Environment) => 4,
        Some(Cause::Child(status)) => status,
        None if error.chain().any(|e| e.is::<std::io::Error>()) => 4,
        None => BUG,
    }
}

/// `error: …`, then one `caused by: …` line for each cause, then `hint: …`.
pub fn render(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}\n");
    for cause in error.chain().skip(1) {
        text.push_str(&format!("caused by: {cause}\n"));
    }
    let hint = error.downcast_ref::<Fail>().and_then(|f| f.hint.as_ref());
    if let Some(hint) = hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    text
}

/// Exit status of an unexpected error.
const BUG: u8 = 70;

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn context_keeps_status_and_hint() {
        let error = Err::<(), _>(Fail::input("no such model `x`").hint("did you mean `y`?"))
            .context("cannot write the model")
            .unwrap_err();
        assert_eq!(exit_status(&error), 2);
        assert_eq!(
            render(&error),
            "error: cannot write the model\ncaused by: no such model `x`\nhint: did you mean `y`?\n"
        );
    }

    #[test]
    fn unforeseen_errors_are_ours_unless_the_system_spoke() {
        let io = anyhow::Error::new(std::io::Error::other("disk on fire")).context("writing");
        assert_eq!(exit_status(&io), 4);
        assert_eq!(exit_status(&anyhow::anyhow!("impossible")), 70);
    }

    #[test]
    fn a_child_that_follows_the_contract_keeps_its_status() {
        for (status, expected) in [(Some(3), 3), (Some(70), 70), (Some(101), 1), (None, 1)] {
            assert_eq!(
                exit_status(&Fail::child(status, "it ended").into()),
                expected
            );
        }
    }
}
