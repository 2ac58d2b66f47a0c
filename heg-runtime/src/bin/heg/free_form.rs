//! The form of an answer without the feature `grammar`: every answer is free.

use clap::Args;
use heg_runtime::Loaded;
use heg_runtime::text::{Conversation, Tokenizer};

use crate::run::Held;

/// No options.
#[derive(Args)]
pub(crate) struct Form {}

impl Form {
    pub(crate) fn offer_tools(&self, _: &mut Conversation) -> anyhow::Result<()> {
        Ok(())
    }

    pub(crate) fn hold(
        &self,
        _: &Loaded,
        _: Option<&Tokenizer>,
        _: Option<&Conversation>,
    ) -> anyhow::Result<Held> {
        Ok(Held::default())
    }
}
