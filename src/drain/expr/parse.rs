//! Parser of label expressions: a tokenizer and recursive descent, which also checks types.

use std::sync::Arc;

use regex::RegexBuilder;

use super::{Pattern, Relation, Term, Text};
use crate::drain::syntax::SyntaxError;

/// Maximum nesting of parentheses and negations: deeper than anyone writes, and well within a thread's
/// stack.
const DEPTH: usize = 64;

/// Maximum size of a compiled regular expression, in bytes. Patterns for labels take thousands.
const PATTERN_BYTES: usize = 1 << 20;

const LABEL_FORM: &str = "write a label as metadata.labels['KEY'] and a string in quotes";
const ONLY_LABELS: &str = "only the labels of a node can be used";
const COMPARE: &str = "compare it, such as metadata.labels['KEY'] == 'VALUE'";

/// Reads a whole expression that says something.
pub(super) fn term(text: &str) -> Result<Term, SyntaxError> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, depth: 0 };
    let (at, value) = parser.choice()?;
    let term = parser.truth(at, value)?;
    match parser.peek() {
        Token::End => Ok(term),
        token => {
            let cause = format!("{} cannot follow", token.name());
            parser.fault(cause, "join with && or ||, or remove it")
        }
    }
}

/// A word of the expression.
#[derive(Clone, Debug, PartialEq)]
enum Token<'a> {
    /// Letters, digits, `_`.
    Word(&'a str),
    /// A text in quotes, without them.
    Quoted(String),
    /// An operator or a bracket.
    Symbol(&'static str),
    /// Nothing more.
    End,
}

impl Token<'_> {
    /// What it is called in a message.
    fn name(&self) -> String {
        match self {
            Self::Word(word) => format!("{word:?}"),
            Self::Quoted(text) => format!("the string {text:?}"),
            Self::Symbol(symbol) => format!("{symbol:?}"),
            Self::End => "the end".to_owned(),
        }
    }
}

/// The longer ones first.
const SYMBOLS: [&str; 16] =
    ["==", "!=", "&&", "||", "!", "(", ")", "[", "]", ",", ".", "-", "/", "=", "?", ":"];

/// Each word with the byte at which it begins.
fn tokens(text: &str) -> Result<Vec<(usize, Token<'_>)>, SyntaxError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let start = at;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if c.is_whitespace() {
            at += c.len_utf8();
        } else if is_word(c) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            at += length;
            tokens.push((start, Token::Word(&rest[..length])));
        } else if c == '\'' || c == '"' {
            let (length, quoted) = quoted(text, start, c)?;
            at += length;
            tokens.push((start, Token::Quoted(quoted)));
        } else if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            at += symbol.len();
            tokens.push((start, Token::Symbol(symbol)));
        } else {
            let remedy = match c {
                '&' => "write && for and",
                '|' => "write || for or",
                _ => LABEL_FORM,
            };
            let cause = format!("unexpected {c:?}");
            return Err(SyntaxError::new(text, start, cause, remedy));
        }
    }
    tokens.push((text.len(), Token::End));
    Ok(tokens)
}

/// The text between quotes, and how many bytes it takes with them.
fn quoted(text: &str, start: usize, quote: char) -> Result<(usize, String), SyntaxError> {
    let mut content = String::new();
    let mut chars = text[start..].char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return Ok((at + 1, content));
        }
        if c != '\\' {
            content.push(c);
            continue;
        }
        match chars.next() {
            Some((_, c @ ('\\' | '\'' | '"'))) => content.push(c),
            Some((_, 'n')) => content.push('\n'),
            Some((_, 'r')) => content.push('\r'),
            Some((_, 't')) => content.push('\t'),
            Some((_, c @ ('x' | 'u' | 'U'))) => {
                let digits = match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let code: String = chars.by_ref().take(digits).map(|(_, digit)| digit).collect();
                let whole = code.len() == digits && code.bytes().all(|it| it.is_ascii_hexdigit());
                let read = whole.then(|| u32::from_str_radix(&code, 16).ok()).flatten();
                let Some(read) = read.and_then(char::from_u32) else {
                    let cause = format!("\\{c}{code} is not a character");
                    let remedy = format!("write \\{c} with {digits} hexadecimal digits");
                    return Err(SyntaxError::new(text, start + at, cause, remedy));
                };
                content.push(read);
            }
            Some((_, c)) => {
                let cause = format!("\\{c} is not a valid escape");
                let remedy = "write a backslash as \\\\";
                return Err(SyntaxError::new(text, start + at, cause, remedy));
            }
            None => break,
        }
    }
    let remedy = format!("close it with {quote}");
    Err(SyntaxError::new(text, start, "the string is not closed", remedy))
}

/// What a part of an expression is.
enum Value {
    /// True or false.
    Truth(Term),
    /// A text.
    Text(Text),
    /// `['a', 'b']`.
    List(Vec<Arc<str>>),
    /// `metadata`.
    Metadata,
    /// `metadata.labels`.
    Labels,
}

impl Value {
    fn name(&self) -> &'static str {
        match self {
            Self::Truth(_) => "a boolean",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Metadata => "metadata",
            Self::Labels => "metadata.labels",
        }
    }
}

/// A value, and where it begins.
type Placed = (usize, Value);

/// What may stand between two values.
#[derive(Clone, Copy)]
enum Operator {
    Compare(Relation),
    In,
    NotIn,
    Matches,
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(usize, Token<'a>)>,
    next: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &Token<'a> {
        self.tokens.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(self.text.len(), |(at, _)| *at)
    }

    /// Takes the next word if it is this operator, in signs or in letters.
    fn take(&mut self, symbol: &str, word: &str) -> bool {
        let taken = match self.peek() {
            Token::Symbol(next) => *next == symbol,
            Token::Word(next) => *next == word,
            _ => false,
        };
        self.next += usize::from(taken);
        taken
    }

    /// Takes a sign that must be there.
    fn expect(&mut self, symbol: &str) -> Result<(), SyntaxError> {
        if self.take(symbol, symbol) {
            return Ok(());
        }
        let cause = format!("{} where {symbol:?} was expected", self.peek().name());
        self.fault(cause, format!("write {symbol} here"))
    }

    fn fault<T>(
        &self,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Result<T, SyntaxError> {
        Err(self.error(self.at(), cause, remedy))
    }

    fn error(&self, at: usize, cause: impl Into<String>, remedy: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.text, at, cause, remedy)
    }

    fn truth(&self, at: usize, value: Value) -> Result<Term, SyntaxError> {
        match value {
            Value::Truth(term) => Ok(term),
            other => {
                let cause = format!("{} is not a boolean", other.name());
                Err(self.error(at, cause, COMPARE))
            }
        }
    }

    fn wanted_text(&self, at: usize, value: Value) -> Result<Text, SyntaxError> {
        match value {
            Value::Text(text) => Ok(text),
            other => {
                let cause = format!("{} where a string was expected", other.name());
                Err(self.error(at, cause, LABEL_FORM))
            }
        }
    }

    /// `a ? b : c`, which binds least.
    fn choice(&mut self) -> Result<Placed, SyntaxError> {
        let (at, condition) = self.any()?;
        if !self.take("?", "?") {
            return Ok((at, condition));
        }
        let condition = self.truth(at, condition)?;
        let (then_at, then) = self.deeper(Self::choice)?;
        let then = self.truth(then_at, then)?;
        self.expect(":")?;
        let (else_at, otherwise) = self.deeper(Self::choice)?;
        let otherwise = self.truth(else_at, otherwise)?;
        Ok((at, Value::Truth(Term::Choice(Box::new([condition, then, otherwise])))))
    }

    fn any(&mut self) -> Result<Placed, SyntaxError> {
        self.chain("||", "or", Term::Any, Self::all)
    }

    fn all(&mut self) -> Result<Placed, SyntaxError> {
        self.chain("&&", "and", Term::All, Self::comparison)
    }

    /// Parts with the same operator between them; a single part is itself.
    fn chain(
        &mut self,
        symbol: &str,
        word: &str,
        join: fn(Vec<Term>) -> Term,
        part: fn(&mut Self) -> Result<Placed, SyntaxError>,
    ) -> Result<Placed, SyntaxError> {
        let (at, first) = part(self)?;
        if !self.take(symbol, word) {
            return Ok((at, first));
        }
        let mut terms = vec![self.truth(at, first)?];
        loop {
            let (at, next) = part(self)?;
            terms.push(self.truth(at, next)?);
            if !self.take(symbol, word) {
                return Ok((at, Value::Truth(join(terms))));
            }
        }
    }

    fn comparison(&mut self) -> Result<Placed, SyntaxError> {
        let (at, mut value) = self.operand()?;
        while let Some(operator) = self.operator()? {
            let (right_at, right) = self.operand()?;
            value = Value::Truth(match (value, operator, right) {
                // Two truths are compared as `(…) == true`.
                (
                    Value::Truth(left),
                    Operator::Compare(relation @ (Relation::Equal | Relation::Differs)),
                    Value::Truth(right),
                ) => {
                    let same = Term::Same(Box::new([left, right]));
                    match relation {
                        Relation::Equal => same,
                        _ => Term::Not(Box::new(same)),
                    }
                }
                (left, operator, right) => {
                    let left = self.wanted_text(at, left)?;
                    self.compare(left, operator, right_at, right)?
                }
            });
        }
        Ok((at, value))
    }

    fn operator(&mut self) -> Result<Option<Operator>, SyntaxError> {
        let operator = match self.peek() {
            Token::Symbol("==") => Operator::Compare(Relation::Equal),
            Token::Symbol("!=") => Operator::Compare(Relation::Differs),
            Token::Word("contains") => Operator::Compare(Relation::Contains),
            Token::Word("startsWith") => Operator::Compare(Relation::StartsWith),
            Token::Word("endsWith") => Operator::Compare(Relation::EndsWith),
            Token::Word("matches") => Operator::Matches,
            Token::Word("in") => Operator::In,
            Token::Word("not") => {
                self.next += 1;
                if *self.peek() != Token::Word("in") {
                    return self
                        .fault("not between two values must be followed by in", "write not in");
                }
                Operator::NotIn
            }
            Token::Symbol("=") => return self.fault("= is not an operator", "write =="),
            _ => return Ok(None),
        };
        self.next += 1;
        Ok(Some(operator))
    }

    fn compare(
        &self,
        left: Text,
        operator: Operator,
        at: usize,
        right: Value,
    ) -> Result<Term, SyntaxError> {
        Ok(match operator {
            Operator::Compare(relation) => {
                Term::Compare(left, relation, self.wanted_text(at, right)?)
            }
            Operator::In => self.is_in(left, at, right)?,
            Operator::NotIn => Term::Not(Box::new(self.is_in(left, at, right)?)),
            Operator::Matches => {
                let Value::Text(Text::Literal(pattern)) = right else {
                    let cause = "a regular expression must be a quoted string";
                    return Err(self.error(at, cause, "write it like matches '^gpu-'"));
                };
                Term::Matches(left, self.pattern(at, &pattern)?)
            }
        })
    }

    fn is_in(&self, left: Text, at: usize, right: Value) -> Result<Term, SyntaxError> {
        match right {
            Value::List(list) => Ok(Term::OneOf(left, list)),
            Value::Labels => Ok(Term::Has(left)),
            other => {
                let cause = format!("{} where a list was expected", other.name());
                let remedy = "write a list such as ['a', 'b'], or metadata.labels";
                Err(self.error(at, cause, remedy))
            }
        }
    }

    fn pattern(&self, at: usize, pattern: &str) -> Result<Pattern, SyntaxError> {
        let compiled = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build();
        compiled.map(Pattern).map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim();
            let reason = reason.strip_prefix("error: ").unwrap_or(reason);
            let cause = format!("invalid regular expression: {reason}");
            self.error(at, cause, "fix it, or escape special characters with \\\\")
        })
    }

    fn operand(&mut self) -> Result<Placed, SyntaxError> {
        let at = self.at();
        Ok((at, self.deeper(Self::operand_within)?))
    }

    /// Parses a part that may be nested.
    fn deeper<T>(
        &mut self,
        part: fn(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<T, SyntaxError> {
        if self.depth >= DEPTH {
            return self.fault("too many nested parentheses", "reduce the nesting");
        }
        self.depth += 1;
        let part = part(self)?;
        self.depth -= 1;
        Ok(part)
    }

    fn operand_within(&mut self) -> Result<Value, SyntaxError> {
        if self.take("!", "not") {
            let (at, value) = self.operand()?;
            if !matches!(value, Value::Truth(_)) {
                let cause = format!("{} cannot be negated", value.name());
                let remedy = "put the comparison in parentheses: !(… == …)";
                return Err(self.error(at, cause, remedy));
            }
            return Ok(Value::Truth(Term::Not(Box::new(self.truth(at, value)?))));
        }
        if self.take("(", "(") {
            let (_, value) = self.choice()?;
            self.expect(")")?;
            return self.members(value);
        }
        if self.take("[", "[") {
            return Ok(Value::List(self.list()?));
        }
        let value = match self.peek() {
            Token::Quoted(text) => Value::Text(Text::Literal(text.as_str().into())),
            Token::Word("true") => Value::Truth(Term::Const(true)),
            Token::Word("false") => Value::Truth(Term::Const(false)),
            Token::Word("metadata") => {
                self.next += 1;
                return self.members(Value::Metadata);
            }
            Token::Word(word) => {
                let cause = format!("unknown word {word:?}");
                return self.fault(cause, LABEL_FORM);
            }
            token => {
                let cause = format!("{} where a label or a string was expected", token.name());
                return self.fault(cause, LABEL_FORM);
            }
        };
        self.next += 1;
        Ok(value)
    }

    /// What follows a value: `.name` or `['name']`, which mean the same, any number of times.
    fn members(&mut self, mut value: Value) -> Result<Value, SyntaxError> {
        loop {
            let quoted = *self.peek() == Token::Symbol("[");
            if !quoted && *self.peek() != Token::Symbol(".") {
                break;
            }
            if !matches!(value, Value::Metadata | Value::Labels) {
                return self.beyond_key();
            }
            self.next += 1;
            let at = self.at();
            let name = if quoted {
                let name = self.quoted_key()?;
                self.expect("]")?;
                name
            } else {
                self.plain_key(&value)?
            };
            value = match value {
                Value::Metadata if &*name == "labels" => Value::Labels,
                Value::Metadata => {
                    return Err(self.error(at, ONLY_LABELS, "write metadata.labels"));
                }
                _ => Value::Text(Text::Label(name)),
            };
        }
        match (value, self.peek()) {
            // In parentheses, its members may follow these.
            (Value::Metadata, token) if *token != Token::Symbol(")") => {
                self.fault(ONLY_LABELS, "write metadata.labels")
            }
            (Value::Text(Text::Label(_)), Token::Symbol("-" | "/")) => self.beyond_key(),
            (value, _) => Ok(value),
        }
    }

    /// Something follows the key of a label as if it were a part of it.
    fn beyond_key<T>(&self) -> Result<T, SyntaxError> {
        let cause = format!("{} cannot follow", self.peek().name());
        self.fault(
            cause,
            "quote a key that is not a plain word: metadata.labels['example.com/key']",
        )
    }

    fn quoted_key(&mut self) -> Result<Arc<str>, SyntaxError> {
        let Token::Quoted(key) = self.peek() else {
            return self.fault("the label key must be a quoted string", LABEL_FORM);
        };
        let key = key.as_str().into();
        self.next += 1;
        Ok(key)
    }

    fn plain_key(&mut self, of: &Value) -> Result<Arc<str>, SyntaxError> {
        let Token::Word(key) = self.peek() else {
            let cause = match of {
                Value::Metadata => ONLY_LABELS,
                _ => "the label key is missing",
            };
            return self.fault(cause, LABEL_FORM);
        };
        let key = (*key).into();
        self.next += 1;
        Ok(key)
    }

    /// What follows `[`.
    fn list(&mut self) -> Result<Vec<Arc<str>>, SyntaxError> {
        let mut list = Vec::new();
        if self.take("]", "]") {
            return Ok(list);
        }
        loop {
            let Token::Quoted(text) = self.peek() else {
                let remedy = "write it like ['a', 'b']";
                return self.fault("a list may only contain quoted strings", remedy);
            };
            list.push(text.as_str().into());
            self.next += 1;
            if !self.take(",", ",") {
                self.expect("]")?;
                return Ok(list);
            }
        }
    }
}
