//! Plots of a report, as SVG.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Result, anyhow};
use coppice_measure::{
    figures::{Series, number},
    report::Report,
};
use plotters::prelude::*;

const SIZE: (u32, u32) = (640, 360);
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 90, 160), RGBColor(200, 80, 0), RGBColor(0, 130, 80), RGBColor(120, 60, 150)];
/// Figures that get a bar for each system.
const BARS: [(&str, &str); 5] = [
    ("put_4000", "put, batches of 4,000, records/s"),
    ("put_500", "put, batches of 500, records/s"),
    ("get_1", "get, 1 thread, per s"),
    ("range_100_updated", "ranges of 100 after updates, records/s"),
    ("written_per_user_byte", "bytes to the device for each byte put"),
];

/// Writes a plot and a CSV file for each curve, and a plot for each figure that systems are
/// compared by.
///
/// # Errors
/// If a file can't be written.
pub fn write(out: &Path, report: &Report) -> Result<()> {
    for series in &report.series {
        fs::write(out.join(format!("{}.svg", series.id)), curve(series)?)?;
        fs::write(out.join(format!("{}.csv", series.id)), csv(series))?;
    }
    for (figure, title) in BARS {
        let bars: Vec<(&str, f64)> = report
            .systems
            .iter()
            .filter_map(|(id, facts)| Some((facts.name.as_str(), report.cells.get(id)?.get(figure)?.median)))
            .collect();
        if !bars.is_empty() {
            fs::write(out.join(format!("{}.svg", figure.replace('_', "-"))), bar_chart(title, &bars)?)?;
        }
    }
    Ok(())
}

fn csv(series: &Series) -> String {
    let mut text = format!("line,{},{}\n", series.x.replace(',', ""), series.y.replace(',', ""));
    for (line, points) in &series.lines {
        for (x, y) in points {
            let _ = writeln!(text, "{line},{x},{y}");
        }
    }
    text
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("a plot: {error}")
}

fn curve(series: &Series) -> Result<String> {
    let points = || series.lines.values().flatten();
    let right = points().map(|point| point.0).fold(0.0, f64::max);
    let top = points().map(|point| point.1).fold(0.0, f64::max) * 1.1;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&series.title, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..right.max(f64::MIN_POSITIVE), 0.0..top.max(f64::MIN_POSITIVE))
            .map_err(failed)?;
        chart.configure_mesh().x_desc(&series.x).y_desc(&series.y).light_line_style(WHITE).draw().map_err(failed)?;
        for ((name, points), colour) in series.lines.iter().zip(COLOURS.iter().cycle()) {
            let line =
                chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2))).map_err(failed)?;
            line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
            let dots = points.iter().map(|point| Circle::new(*point, 2, colour.filled()));
            chart.draw_series(dots).map_err(failed)?;
        }
        if series.lines.len() > 1 {
            chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw().map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}

/// A chart with horizontal bars, so that their names have room.
fn bar_chart(title: &str, bars: &[(&str, f64)]) -> Result<String> {
    let greatest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    let (left, step) = (170, 34);
    let size = (SIZE.0, 50 + step * bars.len() as u32);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let words = ("sans-serif", 13).into_font();
        root.draw(&Text::new(title.to_owned(), (10, 10), ("sans-serif", 16).into_font())).map_err(failed)?;
        for (at, (name, value)) in bars.iter().enumerate() {
            let top = 44 + step as i32 * at as i32;
            let length = (f64::from(size.0 - left - 100) * value / greatest) as i32;
            let colour = COLOURS[usize::from(!name.starts_with("Coppice"))];
            let corners = [(left as i32, top), (left as i32 + length, top + 20)];
            root.draw(&Rectangle::new(corners, colour.filled())).map_err(failed)?;
            root.draw(&Text::new((*name).to_owned(), (10, top + 4), words.clone())).map_err(failed)?;
            let figure = number(*value);
            root.draw(&Text::new(figure, (left as i32 + length + 6, top + 4), words.clone())).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}
