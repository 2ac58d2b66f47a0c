//! Terms of use other than free licences: shown before anything is fetched, accepted on the terminal, and recorded
//! beside the file.

use crate::fail::Fail;
use anyhow::{Context, Result};
use std::fs;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

/// Terms that the user of a model has to accept.
pub(super) struct Terms {
    pub(super) name: &'static str,
    /// Address of the full text.
    pub(super) address: &'static str,
    /// The obligations that HEG meets, and those that remain with the user.
    pub(super) bounds: &'static str,
}

/// The way in which a user accepts a model's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// Ask on the terminal.
    Ask,
    /// Accepted on the command line.
    Given,
}

impl Terms {
    /// Obtains the user's consent to these terms for the model `name`, and records it in `folder`.
    pub(super) fn settle(&self, name: &str, consent: Consent, folder: &Path) -> Result<()> {
        let record = folder.join(RECORD);
        let text = self.record();
        if fs::read_to_string(&record).is_ok_and(|known| known == text) {
            return Ok(());
        }
        eprintln!("{name} comes under the {}: {}", self.name, self.address);
        eprintln!("{}.", self.bounds);
        if consent == Consent::Ask && !self.ask()? {
            return Err(Fail::input(format!("the {} were not accepted", self.name)).into());
        }
        fs::write(&record, text).with_context(|| format!("cannot write `{}`", record.display()))
    }

    fn ask(&self) -> Result<bool> {
        let input = std::io::stdin();
        if !input.is_terminal() {
            let message = format!("the {} have to be accepted first", self.name);
            let hint = format!(
                "read {}, then say so with --accept-terms, since there is no terminal to ask on",
                self.address
            );
            return Err(Fail::input(message).hint(hint).into());
        }
        eprint!("Do you accept them? [y/N] ");
        std::io::stderr().flush()?;
        let mut answer = String::new();
        input.lock().read_line(&mut answer)?;
        Ok(is_yes(&answer))
    }

    fn record(&self) -> String {
        format!("accepted: {} ({})\n", self.name, self.address)
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

/// Name of the file that records the accepted terms.
const RECORD: &str = "terms.txt";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::{exit_status, render};

    const TERMS: Terms = Terms {
        name: "Terms of Test",
        address: "https://example.com/terms",
        bounds: "For tests only",
    };

    #[test]
    fn consent_is_asked_for_once() {
        let folder = tempfile::tempdir().unwrap();
        // Tests may or may not have a terminal; only without one is the answer known.
        if !std::io::stdin().is_terminal() {
            let error = TERMS
                .settle("toy", Consent::Ask, folder.path())
                .unwrap_err();
            assert_eq!(exit_status(&error), 2);
            assert_eq!(
                render(&error),
                "error: the Terms of Test have to be accepted first\n\
                 hint: read https://example.com/terms, then say so with --accept-terms, since there is no terminal \
                 to ask on\n"
            );
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        TERMS.settle("toy", Consent::Given, folder.path()).unwrap();
        TERMS.settle("toy", Consent::Ask, folder.path()).unwrap();
    }

    #[test]
    fn other_terms_are_asked_for_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(RECORD), "accepted: older ones\n").unwrap();
        if !std::io::stdin().is_terminal() {
            assert!(TERMS.settle("toy", Consent::Ask, folder.path()).is_err());
        }
    }

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in [
            ("y\n", true),
            (" YES \n", true),
            ("\n", false),
            ("", false),
            ("n", false),
        ] {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }
}
