//! Deletions over time as an SVG: seconds after the taint on a logarithmic axis, since one
//! contender begins where another has long ended.

use std::fmt::{Result, Write as _};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// The axis: from 10 ms to 1000 s.
const DECADES: std::ops::RangeInclusive<i32> = -2..=3;
/// Told apart by people who see no red or no green.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#cc79a7", "#777777"];

/// Draws each curve: its name, and when each pod was deleted, in order.
pub(crate) fn svg<'a>(
    title: &str,
    curves: impl Iterator<Item = (&'a str, &'a [f64])>,
) -> std::result::Result<String, std::fmt::Error> {
    let mut out = String::new();
    write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>\n"
    )?;
    axes(&mut out)?;
    for (index, (name, moments)) in curves.enumerate() {
        curve(&mut out, index, name, moments)?;
    }
    out.push_str("</svg>\n");
    Ok(out)
}

fn axes(out: &mut String) -> Result {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for decade in DECADES {
        let seconds = 10f64.powi(decade);
        let x = x(seconds);
        writeln!(
            out,
            "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{seconds}</text>",
            bottom + 18.0
        )?;
    }
    for percent in [0, 25, 50, 75, 100] {
        let y = y(f64::from(percent) / 100.0);
        writeln!(
            out,
            "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>",
            LEFT - 6.0,
            y + 4.0
        )?;
    }
    writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">seconds after the taint</text>",
        f64::midpoint(LEFT, right),
        bottom + 42.0
    )
}

#[allow(clippy::cast_precision_loss)]
fn curve(out: &mut String, index: usize, name: &str, moments: &[f64]) -> Result {
    let colour = COLOURS[index % COLOURS.len()];
    let mut path = String::new();
    let mut before = None;
    for (number, seconds) in moments.iter().enumerate() {
        let part = (number + 1) as f64 / moments.len() as f64;
        let point = format!("{:.1} {:.1}", x(*seconds), y(part));
        // Many pods share a pixel.
        if before.as_ref() != Some(&point) {
            let letter = if before.is_none() { 'M' } else { 'L' };
            write!(path, "{letter}{point}")?;
            before = Some(point);
        }
    }
    let legend = TOP + 18.0 + 18.0 * index as f64;
    writeln!(
        out,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
         <path d=\"M{0} {1}h20\" stroke=\"{colour}\" stroke-width=\"2\"/>\
         <text x=\"{2}\" y=\"{3}\">{name}</text>",
        LEFT + 10.0,
        legend,
        LEFT + 36.0,
        legend + 4.0
    )
}

fn x(seconds: f64) -> f64 {
    let (first, last) = (f64::from(*DECADES.start()), f64::from(*DECADES.end()));
    let part = (seconds.log10().clamp(first, last) - first) / (last - first);
    LEFT + part * (WIDTH - LEFT - RIGHT)
}

fn y(part: f64) -> f64 {
    HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
}
