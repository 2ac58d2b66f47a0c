//! SVG as text: a tree is written element by element, and all text in it is escaped.
//!
//! The page defines colours and fonts: shapes have classes. Coordinates have one decimal, so that the same
//! picture is the same text.

use std::fmt::Display;

/// A picture that is being written.
pub(super) struct Svg {
    text: String,
    /// The open elements, innermost last.
    open: Vec<&'static str>,
}

/// The alignment of a text to its point.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Align {
    Start,
    Middle,
    End,
}

impl Svg {
    /// Starts a picture of this size, in CSS pixels if it is not scaled. `class` is the page's style class,
    /// `label` the description for screen readers. `role` is `img`, or `group` if parts of it can be focused.
    pub(super) fn new(class: &str, role: &str, [width, height]: [f64; 2], label: &str) -> Self {
        let mut svg = Self {
            text: String::new(),
            open: Vec::new(),
        };
        let view = format!("0 0 {} {}", number(width), number(height));
        let size = [number(width), number(height)];
        svg.open(
            "svg",
            &[
                ("class", &class),
                ("role", &role),
                ("viewBox", &view),
                ("width", &size[0]),
                ("height", &size[1]),
                ("aria-label", &label),
            ],
        );
        svg
    }

    /// Closes all open elements, and returns the text.
    pub(super) fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }

    /// Opens an element; [`Svg::close`] ends it.
    pub(super) fn open(&mut self, name: &'static str, attributes: &[(&str, &dyn Display)]) {
        self.tag(name, attributes);
        self.text.push('>');
        self.open.push(name);
    }

    /// Ends the innermost open element.
    pub(super) fn close(&mut self) {
        if let Some(name) = self.open.pop() {
            self.text.push_str(&format!("</{name}>"));
        }
    }

    /// Writes an element without content.
    pub(super) fn element(&mut self, name: &str, attributes: &[(&str, &dyn Display)]) {
        self.tag(name, attributes);
        self.text.push_str("/>");
    }

    /// Writes the tooltip of the open element.
    pub(super) fn title(&mut self, text: &str) {
        self.text
            .push_str(&format!("<title>{}</title>", escaped(text)));
    }

    /// Writes a line of text on this base line.
    pub(super) fn text(&mut self, class: &str, at: [f64; 2], align: Align, text: &str) {
        self.turned_text(class, at, align, 0.0, text);
    }

    /// Writes a line of text, turned clockwise about its point.
    pub(super) fn turned_text(
        &mut self,
        class: &str,
        [x, y]: [f64; 2],
        align: Align,
        degrees: f64,
        text: &str,
    ) {
        let anchor = match align {
            Align::Start => "start",
            Align::Middle => "middle",
            Align::End => "end",
        };
        let (x, y) = (number(x), number(y));
        let turn = format!("rotate({} {x} {y})", number(degrees));
        let mut attributes: Vec<(&str, &dyn Display)> = vec![("x", &x), ("y", &y)];
        if !class.is_empty() {
            attributes.push(("class", &class));
        }
        if align != Align::Start {
            attributes.push(("text-anchor", &anchor));
        }
        if degrees != 0.0 {
            attributes.push(("transform", &turn));
        }
        self.tag("text", &attributes);
        self.text.push_str(&format!(">{}</text>", escaped(text)));
    }

    /// Writes a rectangle with rounded corners.
    pub(super) fn rect(&mut self, class: &str, at: [f64; 2], size: [f64; 2], radius: f64) {
        let [x, y, width, height, radius] = [at[0], at[1], size[0], size[1], radius].map(number);
        self.element(
            "rect",
            &[
                ("class", &class),
                ("x", &x),
                ("y", &y),
                ("width", &width),
                ("height", &height),
                ("rx", &radius),
            ],
        );
    }

    /// Writes a path of straight lines through these points.
    pub(super) fn line(&mut self, class: &str, points: &[[f64; 2]]) {
        let mut path = String::new();
        for (index, [x, y]) in points.iter().enumerate() {
            let command = if index == 0 { "M" } else { "L" };
            path.push_str(&format!("{command}{} {}", number(*x), number(*y)));
        }
        self.element("path", &[("class", &class), ("d", &path)]);
    }

    /// Writes a line with an arrowhead at the last point.
    pub(super) fn arrow(&mut self, class: &str, points: &[[f64; 2]]) {
        self.line(class, points);
        let [.., from, to] = points else { return };
        let length = distance(*from, *to).max(1e-9);
        let along = [(to[0] - from[0]) / length, (to[1] - from[1]) / length];
        let side = |sign: f64| {
            [
                to[0] - HEAD * along[0] - sign * 0.6 * HEAD * along[1],
                to[1] - HEAD * along[1] + sign * 0.6 * HEAD * along[0],
            ]
        };
        self.line("head", &[side(1.0), *to, side(-1.0)]);
    }

    fn tag(&mut self, name: &str, attributes: &[(&str, &dyn Display)]) {
        self.text.push('<');
        self.text.push_str(name);
        for (key, value) in attributes {
            let value = value.to_string();
            self.text
                .push_str(&format!(" {key}=\"{}\"", escaped(&value)));
        }
    }
}

/// Length of an arrowhead.
const HEAD: f64 = 6.0;

/// The distance of two points. Not by `hypot`: that of glibc is of version 2.35, which RHEL 9 does not have.
pub(super) fn distance(from: [f64; 2], to: [f64; 2]) -> f64 {
    let [x, y] = [to[0] - from[0], to[1] - from[1]];
    (x * x + y * y).sqrt()
}

/// Formats a number with one decimal at most: `12.5`, `12`.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// Escapes text for the content or an attribute of an element.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_well_formed_and_escaped() {
        let mut svg = Svg::new("c", "img", [10.0, 2.5], "a \"b\"");
        svg.open("g", &[("class", &"<g>")]);
        svg.title("</title><script>");
        svg.text("", [1.0, 2.25], Align::Start, "R&D 'x'");
        svg.turned_text("t", [0.0, -0.01], Align::End, -45.0, "up");
        svg.arrow("e", &[[0.0, 0.0], [10.0, 0.0]]);
        insta::assert_snapshot!(svg.finish().replace("><", ">\n<"), @r#"
        <svg class="c" role="img" viewBox="0 0 10 2.5" width="10" height="2.5" aria-label="a &quot;b&quot;">
        <g class="&lt;g&gt;">
        <title>&lt;/title&gt;&lt;script&gt;</title>
        <text x="1" y="2.2">R&amp;D &#39;x&#39;</text>
        <text x="0" y="0" class="t" text-anchor="end" transform="rotate(-45 0 0)">up</text>
        <path class="e" d="M0 0L10 0"/>
        <path class="head" d="M4 3.6L10 0L4 -3.6"/>
        </g>
        </svg>
        "#);
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, -0.04, 1.0, 12.34, -3.25, 100.0];
        assert_eq!(numbers.map(number), ["0", "0", "1", "12.3", "-3.2", "100"]);
    }
}
