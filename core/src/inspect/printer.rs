//! What was found, as JSON for programs (one object per line) or as tables for people. Nothing is kept back: a file of
//! any size is printed while it is read.

use std::io::{self, Write};

use serde_json::Value;

use super::damage::Damage;

/// How findings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One object per line; its member `type` says what it is about.
    Json,
    /// Columns and headings.
    Table,
}

/// One member of an object, or one cell of a table.
pub(super) type Field = (&'static str, Value);

/// A text in a table is cut off behind so many characters; JSON has all of it.
const MAX_CELL_CHARACTERS: usize = 200;

/// Prints findings and remembers whether there was damage.
pub(super) struct Printer<'out> {
    out: &'out mut dyn Write,
    format: Format,
    /// The table that is being printed, and how wide its columns have become.
    table: Option<(&'static str, Vec<usize>)>,
    anything: bool,
    damaged: bool,
}

impl<'out> Printer<'out> {
    pub(super) fn new(out: &'out mut dyn Write, format: Format) -> Self {
        Self { out, format, table: None, anything: false, damaged: false }
    }

    pub(super) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// Things of which there is one, each on a line of its own in a table.
    pub(super) fn facts(&mut self, kind: &'static str, fields: &[Field]) -> io::Result<()> {
        if self.is_json() {
            return self.object(kind, fields);
        }
        self.begin_block()?;
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in fields {
            writeln!(self.out, "{name:width$}  {}", cell(value))?;
        }
        Ok(())
    }

    /// One of many.
    pub(super) fn row(&mut self, kind: &'static str, fields: &[Field]) -> io::Result<()> {
        if self.is_json() {
            return self.object(kind, fields);
        }
        let cells: Vec<_> = fields.iter().map(|(_, value)| cell(value)).collect();
        let widths = match self.table.take() {
            Some((current, widths)) if current == kind => widths,
            _ => {
                self.begin_block()?;
                let widths: Vec<_> =
                    fields.iter().zip(&cells).map(|((name, _), cell)| name.len().max(characters(cell))).collect();
                self.headings(fields, &widths)?;
                widths
            }
        };
        let widths: Vec<_> = widths.iter().zip(&cells).map(|(width, cell)| characters(cell).max(*width)).collect();
        self.line(fields, &cells, &widths)?;
        self.table = Some((kind, widths));
        Ok(())
    }

    /// All of them at once: columns are as wide as the widest.
    pub(super) fn rows(&mut self, kind: &'static str, rows: &[Vec<Field>]) -> io::Result<()> {
        let width = |column: usize| rows.iter().map(|row| characters(&cell(&row[column].1))).max();
        if let Some(first) = rows.first().filter(|_| !self.is_json()) {
            let names = first.iter().enumerate();
            let widths: Vec<_> = names.map(|(column, (name, _))| name.len().max(width(column).unwrap_or(0))).collect();
            self.begin_block()?;
            self.headings(first, &widths)?;
            self.table = Some((kind, widths));
        }
        rows.iter().try_for_each(|row| self.row(kind, row))
    }

    /// Something that should be there and is not, at no byte of a file.
    pub(super) fn missing(&mut self, expected: &str) -> io::Result<()> {
        self.damaged = true;
        if self.is_json() {
            let found = Value::from("no such file");
            return self.object("damage", &[("at", Value::Null), ("expected", expected.into()), ("found", found)]);
        }
        self.begin_block()?;
        writeln!(self.out, "DAMAGED: expected {}; found no such file", printable(expected))
    }

    pub(super) fn damage(&mut self, damage: &Damage) -> io::Result<()> {
        self.damaged = true;
        let Damage { at, expected, found } = damage;
        if self.is_json() {
            return self.object(
                "damage",
                &[("at", (*at).into()), ("expected", (**expected).into()), ("found", (**found).into())],
            );
        }
        self.begin_block()?;
        let (expected, found) = (printable(expected), printable(found));
        writeln!(self.out, "DAMAGED at byte {at}: expected {expected}; found {found}")
    }

    /// Something to know that no table holds.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        if self.is_json() {
            return self.object("note", &[("text", text.into())]);
        }
        self.begin_block()?;
        writeln!(self.out, "{}", printable(text))
    }

    fn begin_block(&mut self) -> io::Result<()> {
        self.table = None;
        if std::mem::replace(&mut self.anything, true) {
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn headings(&mut self, fields: &[Field], widths: &[usize]) -> io::Result<()> {
        let headings: Vec<_> = fields.iter().map(|(name, _)| (*name).to_owned()).collect();
        self.line(fields, &headings, widths)
    }

    fn object(&mut self, kind: &str, fields: &[Field]) -> io::Result<()> {
        self.out.write_all(b"{\"type\":")?;
        serde_json::to_writer(&mut self.out, kind)?;
        for (name, value) in fields {
            self.out.write_all(b",")?;
            serde_json::to_writer(&mut self.out, name)?;
            self.out.write_all(b":")?;
            serde_json::to_writer(&mut self.out, value)?;
        }
        self.out.write_all(b"}\n")
    }

    fn line(&mut self, fields: &[Field], cells: &[String], widths: &[usize]) -> io::Result<()> {
        let mut line = String::new();
        for (((_, value), cell), &width) in fields.iter().zip(cells).zip(widths) {
            let gap = " ".repeat(width.saturating_sub(characters(cell)));
            let (before, behind) = if value.is_number() { (&*gap, "") } else { ("", &*gap) };
            line += &format!("{before}{cell}{behind}  ");
        }
        writeln!(self.out, "{}", line.trim_end())
    }
}

fn characters(text: &str) -> usize {
    text.chars().count()
}

/// A value as a table shows it.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) if values.iter().all(Value::is_string) => {
            values.iter().map(cell).collect::<Vec<_>>().join(",")
        }
        other => printable(&other.to_string()),
    }
}

/// On one line, of bounded length, and without anything that a terminal would obey.
fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == MAX_CELL_CHARACTERS {
            shown.push('…');
            break;
        }
        if character.is_control() { shown.extend(character.escape_default()) } else { shown.push(character) }
    }
    shown
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use serde_json::json;

    use super::*;

    fn printed(format: Format) -> String {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, format);
        printer.facts("file", &[("a", json!(1)), ("longer", json!("x\u{1b}[2J"))]).unwrap();
        printer.row("part", &[("offset", json!(5)), ("names", json!(["p", "q"])), ("none", json!(null))]).unwrap();
        printer.row("part", &[("offset", json!(12_345_678)), ("names", json!([])), ("none", json!("z"))]).unwrap();
        printer.damage(&Damage::new(9, "this", "that")).unwrap();
        assert!(printer.is_damaged());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn tables_are_for_people() {
        let expected = "\
a       1
longer  x\\u{1b}[2J

offset  names  none
     5  p,q    -
12345678  -      z

DAMAGED at byte 9: expected this; found that
";
        assert_eq!(printed(Format::Table), expected);
    }

    #[test]
    fn json_is_one_object_per_line() {
        let expected = r#"{"type":"file","a":1,"longer":"x\u001b[2J"}
{"type":"part","offset":5,"names":["p","q"],"none":null}
{"type":"part","offset":12345678,"names":[],"none":"z"}
{"type":"damage","at":9,"expected":"this","found":"that"}
"#;
        assert_eq!(printed(Format::Json), expected);
    }

    #[test]
    fn long_cells_are_cut() {
        assert_eq!(characters(&cell(&json!("x".repeat(500)))), MAX_CELL_CHARACTERS + 1);
    }
}
