//! The APIs in which clients ask for answers. A route is of one of them.

use super::answer::ApiKind;
use super::request::MessagesPurpose;

/// An API, in whose form a request is read and its answer written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI's chat, or its bare completions.
    Choices(ApiKind),
    /// Anthropic's Messages API.
    Messages(MessagesPurpose),
    /// OpenAI's Responses API.
    Responses,
}

impl Dialect {
    /// Returns the beginning of answer ids.
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Choices(ApiKind::Chat) => "chatcmpl-",
            Self::Choices(ApiKind::Completion) => "cmpl-",
            Self::Messages(_) => "msg_",
            Self::Responses => "resp_",
        }
    }

    /// Returns the name of the field that limits an answer's tokens.
    pub(super) fn tokens_field(self) -> &'static str {
        match self {
            Self::Choices(_) | Self::Messages(_) => "max_tokens",
            Self::Responses => "max_output_tokens",
        }
    }

    /// Returns the name of the field of an answer's form.
    pub(super) fn format_field(self) -> &'static str {
        match self {
            Self::Choices(_) => "response_format",
            Self::Messages(_) => "output_config.format",
            Self::Responses => "text.format",
        }
    }
}
