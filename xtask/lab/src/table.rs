//! Tables of all commands: Markdown for reports, and columns of fixed widths for a terminal.

use std::fmt::Display;

/// A Markdown table.
pub(crate) struct Markdown(String);

impl Markdown {
    /// Begins a table with the names of its columns.
    pub(crate) fn new(names: impl IntoIterator<Item = impl Display>) -> Self {
        let mut table = Self(String::new());
        let columns = table.write(names);
        table.0 += &format!("|{}\n", "---|".repeat(columns));
        table
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Display>) {
        self.write(cells);
    }

    /// Returns the text, with a line end behind each row.
    pub(crate) fn text(self) -> String {
        self.0
    }

    /// Adds a line, and returns the number of its cells.
    fn write(&mut self, cells: impl IntoIterator<Item = impl Display>) -> usize {
        let mut count = 0;
        self.0.push('|');
        for cell in cells {
            self.0 += &format!(" {cell} |");
            count += 1;
        }
        self.0.push('\n');
        count
    }
}

/// A column of a table on a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    /// Blanks before it.
    gap: usize,
    /// Least number of characters.
    width: usize,
    align: Align,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

impl Column {
    /// A column that begins at its left, `gap` blanks behind the one before it.
    pub(crate) const fn left(gap: usize, width: usize) -> Self {
        let align = Align::Left;
        Self { gap, width, align }
    }

    /// A column that ends at its right, `gap` blanks behind the one before it.
    pub(crate) const fn right(gap: usize, width: usize) -> Self {
        let align = Align::Right;
        Self { gap, width, align }
    }
}

/// Returns a line of a table on a terminal, with its end and without blanks before that. Cells beyond the columns are
/// left out.
pub(crate) fn line(columns: &[Column], cells: impl IntoIterator<Item = impl Display>) -> String {
    let mut text = String::new();
    for (column, cell) in columns.iter().zip(cells) {
        let (gap, width, cell) = (column.gap, column.width, cell.to_string());
        text += &" ".repeat(gap);
        text += &match column.align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        };
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Returns a figure with this many digits; a dash for none.
pub(crate) fn shown(figure: Option<f64>, digits: usize) -> String {
    figure.map_or("–".to_owned(), |figure| format!("{figure:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_markdown_table_has_a_head_and_rows() {
        let mut table = Markdown::new(["model", "ms"]);
        table.row(["tiny".to_owned(), format!("{:.1}", 2.0)]);
        assert_eq!(table.text(), "| model | ms |\n|---|---|\n| tiny | 2.0 |\n");
    }

    #[test]
    fn columns_stand_below_each_other_and_lines_end_without_blanks() {
        let columns = [Column::left(0, 6), Column::right(1, 4), Column::left(2, 8)];
        let head = line(&columns, ["", "ms", "goal"]);
        let row = line(&columns, ["a", "1.25", ""]);
        assert_eq!(head + &row, "         ms  goal\na      1.25\n");
    }

    #[test]
    fn a_figure_that_is_missing_is_a_dash() {
        assert_eq!(shown(Some(1.0), 2) + &shown(None, 2), "1.00–");
    }
}
