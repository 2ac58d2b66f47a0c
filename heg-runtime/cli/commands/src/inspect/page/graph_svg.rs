//! The HEG as a picture: embedding, layers with their kernels, head; from left to right, or from top to bottom on
//! narrow pages.

use super::names;
use super::outline::{Card, Edge, LayerKind, Outline};
use super::svg::{Align, Svg};

/// A rectangle of the picture.
#[derive(Clone, Copy)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn right(self) -> f64 {
        self.x + self.width
    }

    fn bottom(self) -> f64 {
        self.y + self.height
    }

    fn middle(self) -> [f64; 2] {
        [self.x + self.width / 2.0, self.y + self.height / 2.0]
    }
}

/// Width of a kernel's card in the wide picture.
const CARD: f64 = 216.0;
/// Gap between cards, for an edge and its label.
const GAP: f64 = 78.0;
/// Padding between a frame and its contents.
const PAD: f64 = 22.0;
/// Height above the cards of a layer, for its title and the residual stream.
const TITLE: f64 = 60.0;
/// Height below the cards of all layers, for the way back to the next layer.
const RETURN: f64 = 24.0;
const EMBEDDING: f64 = 120.0;
const EDGE: f64 = 44.0;
const LINE: f64 = 16.0;

/// Draws the HEG from left to right. Inside the frame, x runs down a rail on the left into each kind of layer, and from
/// each into a rail on the right; from there below all of them back to the left one.
pub(super) fn wide(outline: &Outline) -> String {
    let lanes: Vec<f64> = outline.kinds.iter().map(lane_height).collect();
    let lane_width = 3.0 * CARD + 2.0 * GAP;
    let frame = Area {
        x: EMBEDDING + EDGE,
        y: 8.0,
        width: lane_width + 2.0 * PAD + 12.0,
        height: lanes.iter().map(|lane| lane + TITLE).sum::<f64>() + RETURN + more_height(outline),
    };
    let rails = [frame.x + 8.0, frame.right() - 9.0];
    let mut middles = Vec::new();
    let mut y = frame.y;
    for height in &lanes {
        middles.push(y + TITLE + (height - PAD) / 2.0);
        y += height + TITLE;
    }
    let first = middles.first().copied().unwrap_or(frame.middle()[1]);
    let last = middles.last().copied().unwrap_or(first);
    let middle = (first + last) / 2.0;
    let height = card_height(&outline.head);
    let head = Area {
        x: frame.right() + EDGE + 18.0,
        y: (middle - height / 2.0).max(1.0),
        width: CARD,
        height,
    };
    let height = (frame.bottom() + 10.0).max(head.bottom() + 2.0);
    let size = [head.right() + 1.0, height];
    let mut svg = Svg::new("graph wide", "img", size, &label(outline));
    frame_of(&mut svg, outline, frame);
    let embedding = Area {
        x: 1.0,
        y: middle - 38.0,
        width: EMBEDDING - 1.0,
        height: 76.0,
    };
    embedding_card(&mut svg, outline, embedding);
    svg.line("edge", &[[embedding.right(), middle], [rails[0], middle]]);
    svg.text(
        "note",
        [frame.x - EDGE / 2.0, middle - 8.0],
        Align::Middle,
        "x",
    );
    wide_return(&mut svg, outline, frame, rails, first);
    for (kind, middle) in outline.kinds.iter().zip(&middles) {
        wide_lane(&mut svg, outline, kind, rails, *middle);
    }
    more(&mut svg, outline, [rails[0] + 26.0, y + 22.0]);
    kernel_card(&mut svg, &outline.head, head);
    let way = [[rails[1], middle], [head.x - 2.0, middle]];
    edge(&mut svg, &outline.last, &way);
    let at = frame.right() + 12.0 + EDGE / 2.0;
    svg.text("note", [at, middle - 8.0], Align::Middle, "x");
    let span = outline.last.span();
    svg.text("note", [at, middle + 16.0], Align::Middle, span);
    svg.finish()
}

/// Draws one kind of layer: three cards, the edges between them, and the residual stream above.
fn wide_lane(svg: &mut Svg, outline: &Outline, kind: &LayerKind, rails: [f64; 2], middle: f64) {
    let height = lane_height(kind) - PAD;
    let top = middle - height / 2.0;
    let left = rails[0] + 26.0;
    if outline.kinds.len() > 1 {
        svg.text(
            "strong",
            [left - 14.0, top - 36.0],
            Align::Start,
            &kind.title,
        );
    }
    let areas = [0.0, 1.0, 2.0].map(|column: f64| Area {
        x: left + column * (CARD + GAP),
        y: top,
        width: CARD,
        height,
    });
    // x reaches `qkv`, and passes above attention to `ffn`.
    let branch = rails[0] + 12.0;
    let (over, down) = (top - 18.0, areas[2].middle()[0]);
    svg.arrow("edge", &[[rails[0], middle], [left - 2.0, middle]]);
    svg.arrow(
        "edge",
        &[
            [branch, middle],
            [branch, over],
            [down, over],
            [down, top - 2.0],
        ],
    );
    svg.line("edge", &[[areas[2].right(), middle], [rails[1], middle]]);
    let residual = format!("x past attention, {}", outline.stream.size());
    svg.text(
        "note",
        [areas[1].middle()[0], over - 7.0],
        Align::Middle,
        &residual,
    );
    for (from, way) in [(0, &kind.attend), (1, &kind.attended)] {
        let points = [
            [areas[from].right(), middle],
            [areas[from + 1].x - 2.0, middle],
        ];
        edge(svg, way, &points);
        let at = areas[from].right() + GAP / 2.0 - 2.0;
        svg.text("strong", [at, middle - 9.0], Align::Middle, way.what);
        svg.text("note", [at, middle + 18.0], Align::Middle, &way.size());
        svg.text("note", [at, middle + 33.0], Align::Middle, way.span());
    }
    for (card, area) in [&kind.qkv, &kind.mha, &kind.ffn].into_iter().zip(areas) {
        kernel_card(svg, card, area);
    }
}

/// Draws the rails from the first kind of layer down, and the way of x from the right rail to the left one.
fn wide_return(svg: &mut Svg, outline: &Outline, frame: Area, rails: [f64; 2], first: f64) {
    let y = frame.bottom() - 26.0;
    let [left, right] = rails;
    edge(
        svg,
        &outline.stream,
        &[[right, first], [right, y], [frame.middle()[0] - 110.0, y]],
    );
    let rest = [[frame.middle()[0] - 110.0, y], [left, y], [left, first]];
    svg.line(edge_class(&outline.stream), &rest);
    let words = next_layer(outline);
    svg.text("note", [frame.middle()[0], y + 16.0], Align::Middle, &words);
}

fn next_layer(outline: &Outline) -> String {
    let span = outline.stream.span();
    let comma = if span.is_empty() { "" } else { ", " };
    format!(
        "x to the next layer, {}{comma}{span}",
        outline.stream.size()
    )
}

/// Draws the HEG from top to bottom.
pub(super) fn tall(outline: &Outline) -> String {
    let width = 352.0;
    let frame_top = 62.0 + 46.0;
    let lanes: Vec<f64> = outline.kinds.iter().map(tall_lane_height).collect();
    let frame = Area {
        x: 1.0,
        y: frame_top,
        width: width - 10.0,
        height: lanes.iter().sum::<f64>() + 58.0 + more_height(outline),
    };
    let head = Area {
        x: 40.0,
        y: frame.bottom() + 54.0,
        width: width - 80.0,
        height: card_height(&outline.head),
    };
    let mut svg = Svg::new(
        "graph tall",
        "img",
        [width, head.bottom() + 2.0],
        &label(outline),
    );
    let middle = width / 2.0;
    let embedding = Area {
        x: 40.0,
        y: 1.0,
        width: width - 80.0,
        height: 60.0,
    };
    embedding_card(&mut svg, outline, embedding);
    frame_of(&mut svg, outline, frame);
    svg.arrow(
        "edge",
        &[[middle, embedding.bottom()], [middle, frame.y - 2.0]],
    );
    svg.text("note", [middle + 12.0, frame.y - 20.0], Align::Start, "x");
    let mut y = frame.y + 30.0;
    for (kind, height) in outline.kinds.iter().zip(&lanes) {
        tall_lane(&mut svg, outline, kind, y, width);
        y += height;
    }
    more(&mut svg, outline, [frame.x + PAD, y + 14.0]);
    let way = [[middle, frame.bottom() + 8.0], [middle, head.y - 2.0]];
    edge(&mut svg, &outline.last, &way);
    let words = format!("{}, or to the head", next_layer(outline));
    svg.text(
        "note",
        [middle, frame.bottom() - 14.0],
        Align::Middle,
        &words,
    );
    kernel_card(&mut svg, &outline.head, head);
    svg.finish()
}

/// Gap between cards from top to bottom.
const DROP: f64 = 46.0;

fn tall_lane_height(kind: &LayerKind) -> f64 {
    let cards = [&kind.qkv, &kind.mha, &kind.ffn].map(card_height);
    24.0 + cards.iter().sum::<f64>() + 3.0 * DROP
}

fn tall_lane(svg: &mut Svg, outline: &Outline, kind: &LayerKind, top: f64, width: f64) {
    if outline.kinds.len() > 1 {
        svg.text("strong", [18.0, top + 14.0], Align::Start, &kind.title);
    }
    let mut y = top + 24.0 + DROP - 12.0;
    let entry = top + 28.0;
    let middle = width / 2.0 + 8.0;
    let rail = 22.0;
    svg.arrow("edge", &[[middle, entry - 6.0], [middle, y - 2.0]]);
    svg.text(
        "note",
        [middle + 12.0, entry + 10.0],
        Align::Start,
        &format!("x: {}", outline.stream.size()),
    );
    let steps = [
        (&kind.qkv, Some(&kind.attend)),
        (&kind.mha, Some(&kind.attended)),
        (&kind.ffn, None),
    ];
    for (card, way) in steps {
        let area = Area {
            x: 40.0,
            y,
            width: width - 68.0,
            height: card_height(card),
        };
        kernel_card(svg, card, area);
        if let Some(way) = way {
            let to = area.bottom() + DROP;
            edge(svg, way, &[[middle, area.bottom()], [middle, to - 2.0]]);
            let at = [middle + 12.0, area.bottom() + DROP / 2.0 + 4.0];
            let words = format!("{}: {}, {}", way.what, way.size(), way.span());
            svg.text("note", at, Align::Start, words.trim_end_matches(", "));
        } else {
            let into = area.middle()[1];
            svg.arrow(
                "edge",
                &[
                    [middle, entry + 6.0],
                    [rail, entry + 6.0],
                    [rail, into],
                    [area.x - 2.0, into],
                ],
            );
        }
        y = area.bottom() + DROP;
    }
}

/// Draws the frame around the layers, with the edges of further layers behind it.
fn frame_of(svg: &mut Svg, outline: &Outline, frame: Area) {
    let size = [frame.width, frame.height];
    if outline.layers > 1 {
        svg.rect("frame", [frame.x + 8.0, frame.y + 8.0], size, 10.0);
        svg.rect("frame", [frame.x + 4.0, frame.y + 4.0], size, 10.0);
    }
    svg.rect("frame", [frame.x, frame.y], size, 10.0);
    let title = match (outline.layers, outline.kinds.len()) {
        (1, _) => "1 layer".to_owned(),
        (layers, 1) => format!("{layers} layers"),
        (layers, kinds) => format!("{layers} layers of {} kinds", kinds + outline.more_kinds),
    };
    match outline.kinds.len() {
        1 => svg.text(
            "title",
            [frame.x + 16.0, frame.y + 24.0],
            Align::Start,
            &title,
        ),
        _ => svg.text(
            "title",
            [frame.right() - 16.0, frame.y + 24.0],
            Align::End,
            &title,
        ),
    }
}

fn more_height(outline: &Outline) -> f64 {
    if outline.more_kinds > 0 { 28.0 } else { 0.0 }
}

fn more(svg: &mut Svg, outline: &Outline, at: [f64; 2]) {
    if outline.more_kinds > 0 {
        let words = format!("and {} more kinds of layers", outline.more_kinds);
        svg.text("note", at, Align::Start, &words);
    }
}

/// Draws a line that shows whether data changes the accelerator: dashed if it does.
fn edge(svg: &mut Svg, edge: &Edge, points: &[[f64; 2]]) {
    svg.arrow(edge_class(edge), points);
}

fn edge_class(edge: &Edge) -> &'static str {
    match edge.crosses() {
        true => "edge inter",
        false => "edge",
    }
}

fn embedding_card(svg: &mut Svg, outline: &Outline, area: Area) {
    svg.rect("card", [area.x, area.y], [area.width, area.height], 8.0);
    let [x, y] = area.middle();
    svg.text("name", [x, y - 10.0], Align::Middle, "embedding");
    let [shape, bytes] = &outline.embedding;
    match area.width > 200.0 {
        true => {
            let words = format!("{shape}, {bytes}");
            svg.text("note", [x, y + 12.0], Align::Middle, &words);
        }
        false => {
            svg.text("note", [x, y + 8.0], Align::Middle, shape);
            svg.text("note", [x, y + 24.0], Align::Middle, bytes);
        }
    }
}

fn lane_height(kind: &LayerKind) -> f64 {
    let cards = [&kind.qkv, &kind.mha, &kind.ffn].map(card_height);
    cards.into_iter().fold(0.0, f64::max) + PAD
}

fn card_height(card: &Card) -> f64 {
    let lines: usize = card.classes.iter().map(|class| class.details.len()).sum();
    let classes = card.classes.len() as f64;
    52.0 + classes * (20.0 + 10.0) + lines as f64 * LINE + 4.0
}

fn kernel_card(svg: &mut Svg, card: &Card, area: Area) {
    svg.open("g", &[]);
    svg.title(&card.title);
    svg.rect("card", [area.x, area.y], [area.width, area.height], 8.0);
    let (left, right) = (area.x + 14.0, area.right() - 14.0);
    svg.text("name", [left, area.y + 25.0], Align::Start, &card.name);
    svg.text("times", [right, area.y + 25.0], Align::End, &card.uses);
    svg.text("note", [left, area.y + 43.0], Align::Start, &card.weights);
    let mut y = area.y + 54.0;
    for class in &card.classes {
        let style = names::style(class.class);
        let lines = 20.0 + class.details.len() as f64 * LINE;
        svg.rect(
            &format!("bar {style}"),
            [left, y + 4.0],
            [3.0, lines - 2.0],
            1.5,
        );
        let device = names::device(class.class);
        svg.text(
            &format!("device {style}"),
            [left + 11.0, y + 16.0],
            Align::Start,
            device,
        );
        svg.text("", [right, y + 16.0], Align::End, &class.shapes);
        for (index, detail) in class.details.iter().enumerate() {
            let at = [left + 11.0, y + 32.0 + index as f64 * LINE];
            svg.text("note", at, Align::Start, detail);
        }
        y += lines + 10.0;
    }
    svg.close();
}

/// Returns the picture in words.
fn label(outline: &Outline) -> String {
    let mut words = format!(
        "Graph: embedding, then {} layers, then {}.",
        outline.layers, outline.head.name
    );
    for kind in &outline.kinds {
        words.push_str(&format!(
            " {}: {}, {}, {}; {} pass {} a token, {} pass {}.",
            kind.title,
            kind.qkv.name,
            kind.mha.name,
            kind.ffn.name,
            kind.attend.what,
            kind.attend.size(),
            kind.attended.what,
            kind.attended.size(),
        ));
    }
    words
}
