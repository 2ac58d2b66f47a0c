//! The models of a server, and which of them a request asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::account::Scope;
use super::error::{ApiError, Result};
use super::fields::describe;
use super::flows::FlowName;
use super::request::{Bound, PromptBounds};
use super::served::ServedModel;
use super::server_error::ServerError;
use heg_runtime::engine::AnswerKind;

/// The models of a server. The first that can answers requests that name none.
pub struct Models {
    first: Arc<ServedModel>,
    others: Vec<Arc<ServedModel>>,
    /// Further names of models.
    aliases: BTreeMap<String, Arc<ServedModel>>,
}

impl From<ServedModel> for Models {
    fn from(only: ServedModel) -> Self {
        Self {
            first: Arc::new(only),
            others: Vec::new(),
            aliases: BTreeMap::new(),
        }
    }
}

impl Models {
    /// Adds a model.
    ///
    /// # Errors
    /// `Model`, if another one has its name.
    pub fn add(&mut self, model: ServedModel) -> std::result::Result<(), ServerError> {
        self.check_free(model.name())?;
        self.others.push(Arc::new(model));
        Ok(())
    }

    /// Gives a model another name, which requests may use as well.
    ///
    /// # Errors
    /// `Model`, if a model has that name already, or none has the name `of`.
    pub fn alias(&mut self, name: String, of: &str) -> std::result::Result<(), ServerError> {
        self.check_free(&name)?;
        let model = self.find(of).ok_or_else(|| ServerError::Model {
            name: of.to_owned(),
            why: "no model of this server has that name",
        })?;
        let model = Arc::clone(model);
        self.aliases.insert(name, model);
        Ok(())
    }

    /// Returns whether a model has this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn check_free(&self, name: &str) -> std::result::Result<(), ServerError> {
        match self.has(name) {
            false => Ok(()),
            true => Err(ServerError::Model {
                name: name.to_owned(),
                why: "a model of this server has that name already",
            }),
        }
    }

    /// Returns the models' names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.iter().map(|model| model.name()).collect()
    }

    /// Returns all models, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Returns the model that a request for answers of a kind asks for: if it names none, the first that gives them.
    ///
    /// # Errors
    /// `Model`, if there is none of that name.
    pub(super) fn asked(&self, name: Option<&str>, kind: AnswerKind) -> Result<&Arc<ServedModel>> {
        let Some(name) = name else {
            let mut models = self.iter();
            let gives = models.find(|model| model.check_kind(kind).is_ok());
            return Ok(gives.unwrap_or(&self.first));
        };
        self.named(name)
    }

    /// Returns the model of a name.
    ///
    /// # Errors
    /// `Model`, if there is none.
    pub(super) fn named(&self, name: &str) -> Result<&Arc<ServedModel>> {
        self.find(name).ok_or_else(|| ApiError::Model {
            asked: describe(&name.into()),
            served: self.names().join("` or `"),
        })
    }

    fn find(&self, name: &str) -> Option<&Arc<ServedModel>> {
        let named = self.iter().find(|model| model.name() == name);
        named.or_else(|| self.aliases.get(name))
    }

    /// Returns the names by which requests may ask for a model, besides its own.
    pub(super) fn aliases_of(&self, model: &ServedModel) -> Vec<&str> {
        let aliases = self.aliases.iter();
        let its = aliases.filter(|(_, of)| of.name() == model.name());
        its.map(|(alias, _)| alias.as_str()).collect()
    }

    /// Returns bounds within which every prompt is that some model takes.
    pub(super) fn bounds(&self) -> PromptBounds {
        let all = || self.iter().map(|model| model.bounds());
        let longest = all().max_by_key(|bounds| bounds.tokens);
        PromptBounds {
            tokens: longest.map_or(0, |bounds| bounds.tokens),
            bounded_by: longest.map_or(Bound::Context, |bounds| bounds.bounded_by),
            token_bytes: all().map(|bounds| bounds.token_bytes).max().unwrap_or(1),
        }
    }

    /// Ends a client's flow of a name with each model that has it. Returns whether one has.
    pub(super) fn end_flow(&self, scope: Scope, name: &FlowName) -> bool {
        let ended = self.iter().filter(|model| {
            let found = model.flows.end(&model.engine, scope, name);
            found.is_some()
        });
        ended.count() > 0
    }
}
