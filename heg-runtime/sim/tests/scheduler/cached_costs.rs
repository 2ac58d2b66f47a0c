//! Cached costs are those of the costs behind the cache.

use heg_sched::{CachedCosts, Call, Costs, Lane, LayerKernel};
use heg_sim::{AnalyticCosts, Dimensions};
use proptest::prelude::*;

proptest! {
    #[test]
    fn answers_are_those_of_the_costs_behind(
        calls in prop::collection::vec((0usize..3, 0u8..7, 1u32..600, 1u32..5000), 1..300),
    ) {
        let costs = AnalyticCosts::core_ultra_5_125h(Dimensions::llama_3b());
        let cached = CachedCosts::new(costs.clone());
        for (lane, kind, rows, context) in calls {
            let call = match kind {
                0 => Call::Prefill { kernel: LayerKernel::Qkv, tokens: rows, context },
                1 => Call::Prefill { kernel: LayerKernel::Mha, tokens: rows, context },
                2 => Call::Prefill { kernel: LayerKernel::Ffn, tokens: rows, context },
                3 => Call::Layer { rows, context, fused: false },
                4 => Call::Layer { rows: 1, context, fused: true },
                5 => Call::Verify { rows, context },
                _ => Call::Head { rows },
            };
            prop_assert_eq!(
                cached.cost(Lane::ALL[lane], call),
                costs.cost(Lane::ALL[lane], call)
            );
        }
    }
}
