//! Pipelines that are made before a launch needs them: a driver takes tenths of a second to compile one, for which somebody
//! would wait.

use heg_gpu::row_counts;
use heg_sched::Launch;
use heg_spec::Group;

use super::form::GpuForm;
use crate::backend::SessionRoom;
use crate::pair_ways::PairWay;
use crate::table::FormTable;

/// Calls whose pipelines may not be there yet, the next one last.
#[derive(Default)]
pub(super) struct Unmade(Vec<(Launch, usize)>);

impl Unmade {
    /// Calls of each kernel that a GPU runs, with rows that need all pipelines between them. Those of few rows come first,
    /// since each token of an answer is such a call.
    pub(super) fn of(forms: &mut FormTable, room: SessionRoom) -> Self {
        let mut calls = Vec::new();
        for launch in alone(forms, kernels) {
            let most = match launch.group {
                Group::Head => room.batch,
                Group::Qkv | Group::Mha | Group::Ffn => room.rows,
            };
            let most = u32::try_from(most.max(1)).unwrap_or(u32::MAX);
            calls.extend(row_counts(most).map(|rows| (launch, rows as usize)));
        }
        calls.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
        Self(calls)
    }

    pub(super) fn take(&mut self) -> Option<(Launch, usize)> {
        self.0.pop()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Does something with the forms of the device that may run whole passes of a pair; they are a lane's own where there is none.
pub(super) fn alone<T>(forms: &mut FormTable, work: impl FnOnce(&FormTable) -> T) -> T {
    let way = std::mem::replace(&mut forms.way, PairWay::Partner);
    let done = work(forms);
    forms.way = way;
    done
}

/// A launch of each kernel that a GPU runs.
fn kernels(forms: &FormTable) -> Vec<Launch> {
    let groups = [Group::Qkv, Group::Mha, Group::Ffn];
    let of_layers = (0..).flat_map(|layer| groups.map(|group| (Some(layer), group)));
    let head = Launch {
        layer: None,
        group: Group::Head,
    };
    let of_layers = of_layers.map(|(layer, group)| Launch { layer, group });
    let (mut known, mut launches) = (Vec::new(), Vec::new());
    for launch in std::iter::once(head).chain(of_layers) {
        let Ok(target) = forms.target(launch) else {
            // Behind the last layer.
            break;
        };
        let form = forms.ready(target, 1, 1).ok();
        let form = form.and_then(|form| GpuForm::of(&*form.runner));
        let Some(form) = form else {
            continue;
        };
        let kernel = (launch.group, form.name.clone());
        if !known.contains(&kernel) {
            known.push(kernel);
            launches.push(launch);
        }
    }
    launches
}
