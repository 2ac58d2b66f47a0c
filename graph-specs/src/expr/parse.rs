//! Parses an expression by recursive descent, within bounds of depth and length.

use super::{Binary, Node, Unary, Value};

/// Parses a whole expression.
pub(super) fn parse(text: &str) -> Result<Node, String> {
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
        operators: 0,
    };
    let node = parser.choose()?;
    match parser.rest() {
        "" => Ok(node),
        _ => Err(parser.expected("an operator or the end")),
    }
}

/// Deepest nesting of parentheses; bounds the recursion on hostile input.
const DEPTH_MAX: usize = 32;

/// Most operators in one expression, as a chain nests as deeply as it is long. Chosen: far above any shipped file's.
const OPERATORS_MAX: usize = 128;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    operators: usize,
}

impl Parser<'_> {
    fn choose(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.expected("less nesting"));
        }
        let mut node = self.coalesce()?;
        if self.rest().starts_with('?') {
            self.at += 1;
            let yes = self.choose()?;
            self.take(":")?;
            let no = self.choose()?;
            node = Node::Choose(Box::new(node), Box::new(yes), Box::new(no));
        }
        self.depth -= 1;
        Ok(node)
    }

    fn coalesce(&mut self) -> Result<Node, String> {
        let mut parts = vec![self.level(0)?];
        while self.accept("??") {
            self.count_operator()?;
            parts.push(self.level(0)?);
        }
        let folded = parts
            .into_iter()
            .rev()
            .reduce(|second, first| Node::Coalesce(Box::new(first), Box::new(second)));
        folded.ok_or_else(|| self.expected("a value"))
    }

    fn level(&mut self, level: usize) -> Result<Node, String> {
        let Some(operators) = Binary::LEVELS.get(level) else {
            return self.power();
        };
        let mut node = self.level(level + 1)?;
        'operators: loop {
            for (symbol, operator) in *operators {
                // `*` is not the first half of `**`.
                let doubled = *symbol == "*" && self.rest().starts_with("**");
                if !doubled && self.accept(symbol) {
                    self.count_operator()?;
                    let right = self.level(level + 1)?;
                    node = Node::Binary(*operator, Box::new(node), Box::new(right));
                    continue 'operators;
                }
            }
            return Ok(node);
        }
    }

    fn power(&mut self) -> Result<Node, String> {
        let base = self.unary()?;
        if self.accept("**") {
            let exponent = self.unary()?;
            return Ok(Node::Binary(
                Binary::Power,
                Box::new(base),
                Box::new(exponent),
            ));
        }
        Ok(base)
    }

    fn unary(&mut self) -> Result<Node, String> {
        if self.accept("-") {
            return Ok(Node::Unary(Unary::Minus, Box::new(self.indexed()?)));
        }
        if self.accept("!") {
            return Ok(Node::Unary(Unary::Not, Box::new(self.indexed()?)));
        }
        self.indexed()
    }

    fn indexed(&mut self) -> Result<Node, String> {
        let mut node = self.primary()?;
        while self.accept("[") {
            self.count_operator()?;
            let index = self.choose()?;
            self.take("]")?;
            node = Node::Index(Box::new(node), Box::new(index));
        }
        Ok(node)
    }

    fn primary(&mut self) -> Result<Node, String> {
        if self.accept("(") {
            let node = self.choose()?;
            self.take(")")?;
            return Ok(node);
        }
        if self.accept("'") {
            let length = self.text[self.at..]
                .find('\'')
                .ok_or_else(|| self.expected("a closing `'`"))?;
            let text = self.text[self.at..self.at + length].to_owned();
            self.at += length + 1;
            return Ok(Node::Literal(Value::Text(text)));
        }
        let rest = self.rest();
        let length = word_length(rest);
        let word = rest[..length].to_owned();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let number = word
                .parse()
                .map_err(|_| self.expected(&format!("a number, found `{word}`")))?;
            self.at += length;
            return Ok(Node::Literal(Value::Number(number)));
        }
        if word.is_empty() {
            return Err(self.expected("a value"));
        }
        self.at += length;
        Ok(match word.as_str() {
            "none" => Node::Literal(Value::None),
            "true" => Node::Literal(Value::Bool(true)),
            "false" => Node::Literal(Value::Bool(false)),
            _ => match word.strip_prefix("config.") {
                Some(path) => Node::Config(path.to_owned()),
                None => Node::Name(word),
            },
        })
    }

    /// Skips white space and returns the unread text.
    fn rest(&mut self) -> &str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len();
        }
        found
    }

    fn count_operator(&mut self) -> Result<(), String> {
        self.operators += 1;
        if self.operators > OPERATORS_MAX {
            return Err(self.expected("fewer operators"));
        }
        Ok(())
    }

    fn take(&mut self, symbol: &str) -> Result<(), String> {
        if self.accept(symbol) {
            Ok(())
        } else {
            Err(self.expected(&format!("`{symbol}`")))
        }
    }

    fn expected(&mut self, what: &str) -> String {
        self.rest();
        let character = self.text[..self.at].chars().count() + 1;
        format!(
            "expected {what} at character {character} of `{}`",
            self.text
        )
    }
}

/// Length of the name or number that `text` starts with; `1e-5` is one word.
fn word_length(text: &str) -> usize {
    let number = text.starts_with(|c: char| c.is_ascii_digit());
    let mut previous = ' ';
    text.find(|c: char| {
        let exponent_sign = number && matches!(previous, 'e' | 'E') && matches!(c, '-' | '+');
        let part = c.is_ascii_alphanumeric() || c == '_' || c == '.' || exponent_sign;
        previous = c;
        !part
    })
    .unwrap_or(text.len())
}
