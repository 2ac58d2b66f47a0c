//! A small evaluation, table by table: equal input gives equal output.

use super::*;

/// One model and two data sets on both machines.
fn small() -> Subject {
    let mut subject = Subject::whole().unwrap();
    subject.models.retain(|model| model.name == "qwen2.5-1.5b");
    let kept = ["agent-30m/summary", "mtrag_un"];
    subject.data.retain(|(_, _, data)| kept.contains(data));
    subject
}

#[test]
fn the_tables_are_the_same_on_any_machine() {
    let (report, lines) = evaluate(&small()).unwrap();
    insta::assert_snapshot!(report);
    assert!(lines.iter().all(|line| line.reached || line.note.is_some()));
    let json = serde_json::to_value(&lines).unwrap();
    let lines = json.as_array().unwrap();
    for field in ["name", "paper", "ours", "reached", "origin", "note"] {
        assert!(
            lines.iter().all(|line| line.get(field).is_some()),
            "{field}"
        );
    }
}

#[test]
fn drafts_help_as_far_as_they_are_accepted() {
    let subject = small();
    let outcomes = subject.serve().unwrap();
    let of = |machine, system| {
        let fits = |it: &&Outcome| (it.machine, it.data, it.system) == (machine, 0, system);
        outcomes.iter().find(fits).unwrap().served
    };
    for machine in 0..subject.machines.len() {
        let [npu, cpu, sam, _, chains, trees, ours] = System::ALL.map(|system| of(machine, system));
        assert!(chains.ms_per_token < sam.ms_per_token && sam.ms_per_token < npu.ms_per_token);
        assert!(trees.ms_per_token < chains.ms_per_token);
        assert!(ours.ms_per_token < cpu.ms_per_token);
        let record = subject
            .records
            .find(subject.data[0].2, "tree of 32")
            .unwrap();
        let gain = npu.decode_ms_per_token / trees.decode_ms_per_token;
        assert!(gain < 1.1 * record.tokens_per_verification(), "{gain}");
        assert!(gain > 0.7 * record.tokens_per_verification(), "{gain}");
    }
}
