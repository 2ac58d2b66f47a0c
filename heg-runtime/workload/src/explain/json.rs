//! An explanation as JSON.

use serde_json::{Value, json};

use heg_sched::Lane;

use super::{CauseShare, Explanation, Stretch};

impl Explanation {
    /// Converts the explanation to a JSON object, whose fields are documented in `COMMANDS.md` of `heg`.
    pub fn to_json(&self) -> Value {
        let request = &self.request;
        json!({
            "request": request.id.0,
            "class": request.class,
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "sentence": self.to_string(),
            "first_token": self.first_token.to_json(),
            "answer": self.answer.as_ref().map(Stretch::to_json),
        })
    }
}

impl Stretch {
    fn to_json(&self) -> Value {
        let intervals = self.intervals.iter().map(|interval| {
            json!({
                "start_us": interval.start.0,
                "end_us": interval.end.0,
                "cause": interval.share,
            })
        });
        let causes = self.shares.iter().map(CauseShare::to_json);
        json!({
            "start_us": self.start.0,
            "end_us": self.end.0,
            "causes": causes.collect::<Vec<_>>(),
            "intervals": intervals.collect::<Vec<_>>(),
        })
    }
}

impl CauseShare {
    fn to_json(&self) -> Value {
        let mut object = json!({
            "cause": self.cause.name(),
            "time_us": self.time.0,
            "text": self.text,
        });
        if let Some(request) = self.cause.request() {
            object["request"] = request.0.into();
        }
        if let Some(lane) = self.cause.lane() {
            object["lane"] = lane_word(lane).into();
        }
        object
    }
}

fn lane_word(lane: Lane) -> &'static str {
    match lane {
        Lane::Npu => "npu",
        Lane::Igpu => "igpu",
        Lane::Cpu => "cpu",
    }
}
