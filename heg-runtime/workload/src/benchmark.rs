//! The paper's benchmarks, built from request files. Some of its data sets may not be redistributed, so two or three
//! files stand in for each of those.

use super::request_file::Workload;
use heg_sched::Class;

/// Files that stand in for one of the paper's data sets: its name, its class, the files.
const STAND_INS: &[(&str, Class, &[&str])] = &[
    ("ProactiveBench", Class::Proactive, &["proactivebench"]),
    ("SAMSum", Class::Proactive, &["irc_groupchat", "qmsum"]),
    (
        "CNN/DailyMail",
        Class::Proactive,
        &["digitalgov_news", "wikinews"],
    ),
    (
        "LMSYS-Chat",
        Class::Reactive,
        &["arena_hard", "mt_bench", "user_oriented"],
    ),
    ("MTRAG", Class::Reactive, &["mtrag_un"]),
    ("BFCL", Class::Reactive, &["bfcl", "sgd"]),
];

/// Groups these workloads into the paper's benchmarks, by name; a file that stands in for none is a benchmark of its
/// own, or two if it has requests of both classes. Every benchmark has requests of one class.
pub fn benchmarks(workloads: Vec<Workload>) -> Vec<(Class, Workload)> {
    let mut found: Vec<(Class, Workload)> = Vec::new();
    for workload in workloads {
        let stand_in = STAND_INS
            .iter()
            .find(|(_, _, files)| files.contains(&workload.name.as_str()));
        for class in [Class::Proactive, Class::Reactive] {
            let mut requests = workload.requests.clone();
            requests.retain(|request| request.class == class);
            if requests.is_empty() {
                continue;
            }
            let name = stand_in.map_or(workload.name.as_str(), |(name, ..)| name);
            match found
                .iter_mut()
                .find(|(c, w)| (*c, w.name.as_str()) == (class, name))
            {
                Some((_, known)) => known.requests.extend(requests),
                None => found.push((
                    class,
                    Workload {
                        name: name.to_owned(),
                        requests,
                    },
                )),
            }
        }
    }
    let place = |name: &str| STAND_INS.iter().position(|(known, ..)| *known == name);
    found.sort_by_key(|(class, w)| {
        let known = place(&w.name);
        (
            *class == Class::Reactive,
            known.is_none(),
            known,
            w.name.clone(),
        )
    });
    found
}

impl Workload {
    /// Removes the sessions: later turns come with their whole prompt, and nothing of it is cached.
    #[must_use]
    pub fn without_sessions(mut self) -> Self {
        for request in &mut self.requests {
            request.session = None;
            request.shared_tokens = 0;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_together_under_the_papers_names() {
        let named = |name: &str| Workload {
            name: name.to_owned(),
            ..Workload::sample()
        };
        let found = benchmarks(["sgd", "mine", "bfcl", "qmsum"].map(named).to_vec());
        let names: Vec<_> = found
            .iter()
            .map(|(class, w)| (*class, w.name.as_str(), w.requests.len()))
            .collect();
        use Class::{Proactive, Reactive};
        assert_eq!(
            names,
            [
                (Proactive, "SAMSum", 20),
                (Proactive, "BFCL", 40),
                (Proactive, "mine", 20),
                (Reactive, "SAMSum", 20),
                (Reactive, "BFCL", 40),
                (Reactive, "mine", 20),
            ]
        );
    }

    #[test]
    fn requests_without_sessions_share_nothing() {
        let alone = Workload::sample().without_sessions();
        assert!(
            alone
                .requests
                .iter()
                .all(|r| r.session.is_none() && r.shared_tokens == 0)
        );
    }
}
