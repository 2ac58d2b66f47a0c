//! The text of all metrics: of the server, and of the engine of each model. Made again only when a status has changed.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::State;
use super::error::Result;
use heg_runtime::engine::Status;

/// The last text, and the statuses that it was made of.
#[derive(Default)]
pub(super) struct MetricsText(Mutex<Option<(Vec<Arc<Status>>, Bytes)>>);

impl MetricsText {
    /// Returns the metrics of all clients and models.
    pub(super) async fn of(&self, state: &State) -> Result<Bytes> {
        let mut statuses = Vec::new();
        for served in state.models.iter() {
            statuses.push(served.status.of(&served.engine).await?);
        }
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |before: &[Arc<Status>]| {
            before.len() == statuses.len()
                && before
                    .iter()
                    .zip(&statuses)
                    .all(|(one, other)| Arc::ptr_eq(one, other))
        };
        if let Some((of, text)) = &*last
            && is_same(of)
        {
            return Ok(text.clone());
        }
        let text = Bytes::from(text_of(state, &statuses)?);
        *last = Some((statuses, text.clone()));
        Ok(text)
    }
}

/// Returns the metrics as text. Those of engines name their model where there are several.
fn text_of(state: &State, statuses: &[Arc<Status>]) -> Result<String> {
    if let [only] = statuses {
        return state.metrics.text(only);
    }
    let mut texts = vec![state.metrics.server_text()?];
    for (served, status) in state.models.iter().zip(statuses) {
        texts.push(state.metrics.engine_text(served.name(), status)?);
    }
    Ok(joined(&texts))
}

/// Joins expositions of OpenMetrics: each family is described once, with the samples of all texts behind that.
fn joined(texts: &[String]) -> String {
    let mut families: Vec<(String, String)> = Vec::new();
    let mut places = HashMap::new();
    for text in texts {
        let (mut place, mut is_new) = (0, false);
        for line in text.lines().filter(|line| *line != END) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let name = rest.split(' ').next().unwrap_or_default();
                is_new = !places.contains_key(name);
                place = *places.entry(name.to_owned()).or_insert(families.len());
                if is_new {
                    families.push(Default::default());
                }
            }
            let Some((description, samples)) = families.get_mut(place) else {
                continue;
            };
            // Writing to a text does not fail.
            let _ = match (line.starts_with('#'), is_new) {
                (true, true) => writeln!(description, "{line}"),
                (true, false) => Ok(()),
                (false, _) => writeln!(samples, "{line}"),
            };
        }
    }
    let all: String = families
        .into_iter()
        .map(|(description, samples)| description + &samples)
        .collect();
    all + END + "\n"
}

/// The end of an exposition.
const END: &str = "# EOF";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_described_once_with_the_samples_of_all() {
        let server = "# HELP heg_requests Ended.\n# TYPE heg_requests counter\nheg_requests_total 3\n# EOF\n";
        let engine = |model: &str, count: u32| {
            format!(
                "# HELP heg_launches Launched.\n# TYPE heg_launches counter\nheg_launches_total{{model=\"{model}\"}} {count}\n\
                 # HELP heg_kv_bytes Reserved.\n# TYPE heg_kv_bytes gauge\n# UNIT heg_kv_bytes bytes\nheg_kv_bytes{{model=\"{model}\"}} 0\n# EOF\n"
            )
        };
        let text = joined(&[server.to_owned(), engine("chat", 7), engine("digest", 9)]);
        insta::assert_snapshot!(text, @r#"
        # HELP heg_requests Ended.
        # TYPE heg_requests counter
        heg_requests_total 3
        # HELP heg_launches Launched.
        # TYPE heg_launches counter
        heg_launches_total{model="chat"} 7
        heg_launches_total{model="digest"} 9
        # HELP heg_kv_bytes Reserved.
        # TYPE heg_kv_bytes gauge
        # UNIT heg_kv_bytes bytes
        heg_kv_bytes{model="chat"} 0
        heg_kv_bytes{model="digest"} 0
        # EOF
        "#);
    }
}
