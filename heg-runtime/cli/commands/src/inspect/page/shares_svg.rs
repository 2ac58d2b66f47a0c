//! The division of a product between two devices: a column for each class of tokens, filled by the first device's share
//! of the work.

use heg_profiler::partition::{ClassCut, ProductPartition, SocPartition};
use heg_spec::{Cut, Side};

use super::names;
use super::svg::{Align, Svg};

const LEFT: f64 = 86.0;
const TOP: f64 = 48.0;
const ROW: f64 = 44.0;
const BAR: f64 = 32.0;
const COLUMN: f64 = 13.0;
const GAP: f64 = 22.0;

/// Maximum number of classes in a row. Chosen: prompts of up to 1024 tokens in steps of 32.
const CLASSES_MAX: usize = 32;

/// Draws a machine's partition.
pub(super) fn draw(soc: &SocPartition) -> String {
    let longest = |of: fn(&ProductPartition) -> &Vec<ClassCut>| {
        let counts = soc.products.iter().map(|product| of(product).len());
        counts.max().unwrap_or(0).min(CLASSES_MAX)
    };
    let (prefill, decode) = (longest(|it| &it.prefill), longest(|it| &it.decode));
    let answers = LEFT + prefill as f64 * COLUMN + GAP;
    let width = answers + decode as f64 * COLUMN + 1.0;
    let height = TOP + soc.products.len() as f64 * ROW + 24.0;
    let machine = names::name(&soc.soc, names::NAME);
    let label =
        format!("Shares of two devices on {machine}; `heg inspect --partition` has the numbers");
    let mut svg = Svg::new("bars", "img", [width, height], &label);
    svg.text("title", [0.0, 16.0], Align::Start, &machine);
    svg.text("note", [LEFT, 38.0], Align::Start, "prompts");
    svg.text("note", [answers, 38.0], Align::Start, "answers");
    for (row, product) in (0_u32..).zip(&soc.products) {
        let top = TOP + f64::from(row) * ROW;
        let name = product.product.name();
        svg.text("tick", [LEFT - 10.0, top + 21.0], Align::End, name);
        columns(&mut svg, product, &product.prefill, [LEFT, top]);
        columns(&mut svg, product, &product.decode, [answers, top]);
    }
    let bottom = height - 6.0;
    for (at, classes) in [
        (LEFT, soc.products.first().map(|it| &it.prefill)),
        (answers, soc.products.first().map(|it| &it.decode)),
    ] {
        let shown = classes.map_or(&[][..], |all| all.get(..CLASSES_MAX).unwrap_or(all));
        let ends = [shown.first(), shown.last()];
        for (class, place) in ends
            .into_iter()
            .flatten()
            .zip([0, shown.len().saturating_sub(1)])
        {
            let middle = at + (place as f64 + 0.5) * COLUMN;
            svg.text(
                "tick",
                [middle, bottom],
                Align::Middle,
                &class.tokens.to_string(),
            );
        }
    }
    svg.finish()
}

fn columns(svg: &mut Svg, product: &ProductPartition, classes: &[ClassCut], [left, top]: [f64; 2]) {
    for (index, class) in classes.iter().take(CLASSES_MAX).enumerate() {
        let x = left + index as f64 * COLUMN;
        let filled = BAR * first_share(product, class);
        svg.open("g", &[("class", &"bar")]);
        svg.title(&format!("{} tokens: {}", class.tokens, class.cut));
        svg.rect("bar", [x, top], [COLUMN - 3.0, BAR], 1.0);
        svg.rect(
            "bar chosen",
            [x, top + BAR - filled],
            [COLUMN - 3.0, filled],
            1.0,
        );
        svg.close();
    }
}

/// Returns the share of the product's work that the first device does, from 0 to 1.
fn first_share(product: &ProductPartition, class: &ClassCut) -> f64 {
    let [rows, tokens] = [product.rows, class.tokens].map(f64::from);
    let share = match &class.cut {
        Cut::Whole(Side::First) => 1.0,
        Cut::Whole(Side::Second) => 0.0,
        Cut::Rows { first } => f64::from(*first) / rows,
        Cut::Tokens { sizes } => sizes.iter().copied().map(f64::from).sum::<f64>() / tokens,
        Cut::Hybrid {
            first,
            padded_tokens,
        } => f64::from(*first) / rows * (f64::from(*padded_tokens) / tokens).min(1.0),
    };
    share.clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use heg_spec::CutProduct;

    use super::*;

    #[test]
    fn columns_are_filled_as_far_as_the_first_device_works() {
        let class = |tokens, cut| ClassCut {
            tokens,
            cut,
            latency_us: 1.0,
            first_us: None,
            second_us: None,
        };
        let hybrid = |padded_tokens| Cut::Hybrid {
            first: 256,
            padded_tokens,
        };
        let product = ProductPartition {
            product: CutProduct::Down,
            rows: 1024,
            row_step: 256,
            prefill: vec![
                class(32, Cut::Rows { first: 512 }),
                class(64, Cut::Tokens { sizes: vec![32] }),
                class(96, hybrid(128)),
                class(128, hybrid(64)),
            ],
            decode: vec![
                class(1, Cut::Whole(Side::First)),
                class(2, Cut::Whole(Side::Second)),
            ],
        };
        let classes = product.prefill.iter().chain(&product.decode);
        let shares: Vec<f64> = classes.map(|class| first_share(&product, class)).collect();
        assert_eq!(shares, [0.5, 0.5, 0.25, 0.125, 1.0, 0.0]);
        let drawn = draw(&SocPartition {
            soc: "<x>".to_owned(),
            static_tokens: vec![32],
            products: vec![product],
        });
        assert_eq!(drawn.matches("<rect").count(), 12);
        assert!(
            drawn.contains("&lt;x&gt;") && !drawn.contains("<x>"),
            "{drawn}"
        );
    }
}
