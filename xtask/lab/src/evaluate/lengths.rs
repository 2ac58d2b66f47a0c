//! The counterpart of the paper's figure 9 (Agent.xpu v2, 6.1): lengths of prompts and answers of the data that is used.

use super::Subject;
use crate::table::Markdown;
use heg_workload::WorkloadRequest;

/// Shares of requests that are no longer, in percent.
const PERCENTILES: [usize; 3] = [10, 50, 90];

/// Lengths by benchmark.
pub(super) fn table(subject: &Subject) -> String {
    let of = |what: &str| PERCENTILES.map(|percent| format!("{what}, P{percent}"));
    let head = ["benchmark", "class", "requests"].map(str::to_owned);
    let lengths = of("prompt").into_iter().chain(of("answer"));
    let mut table = Markdown::new(head.into_iter().chain(lengths));
    for (class, workload) in &subject.benchmarks {
        let requests = workload.requests.iter().filter(|it| it.class == *class);
        let requests: Vec<&WorkloadRequest> = requests.collect();
        let of = |length: fn(&WorkloadRequest) -> u32| {
            let mut lengths: Vec<u32> = requests.iter().map(|it| length(it)).collect();
            lengths.sort_unstable();
            PERCENTILES.map(|percent| {
                // Nearest rank.
                let rank = (lengths.len() * percent).div_ceil(100);
                let found = lengths.get(rank.saturating_sub(1));
                found.map_or("–".to_owned(), u32::to_string)
            })
        };
        let row = [
            workload.name.clone(),
            format!("{class:?}").to_lowercase(),
            requests.len().to_string(),
        ];
        let prompts = of(|request| request.prompt_tokens);
        let answers = of(|request| request.output_tokens);
        table.row(row.into_iter().chain(prompts).chain(answers));
    }
    format!(
        "\n## Lengths of the data (paper: figure 9)\n\nIn tokens.\n\n{}",
        table.text()
    )
}
