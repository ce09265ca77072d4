//! Files that are written and read, and what the exit code follows from.

use super::Arguments;
use crate::error::Error;
use crate::output::note;
use std::fs;
use std::io::BufWriter;
use std::path::Path;
use urxe_conform::known::Known;
use urxe_conform::report::{self, Report};
use urxe_conform::verdict::Verdict;

/// The known results, if there is a list.
pub(super) fn read_known(arguments: &Arguments) -> Result<Known, Error> {
    let Some(path) = &arguments.known else { return Ok(Known::default()) };
    let text = fs::read_to_string(path).map_err(Error::system(path.display().to_string()))?;
    Known::parse(&text).map_err(|error| Error::Usage(format!("{}: {error}", path.display())))
}

/// Writes what was asked for.
pub(super) fn write_files(arguments: &Arguments, report: &Report) -> Result<(), Error> {
    let write = |path: &Path, text: String| {
        fs::write(path, text).map_err(Error::system(path.display().to_string()))
    };
    if let Some(path) = &arguments.json {
        write(path, format!("{:#}\n", report::json::value(report)))?;
    }
    if let Some(path) = &arguments.junit {
        write(path, report::junit::text(report))?;
    }
    if let Some(path) = &arguments.html {
        write(path, report::html::text(report))?;
    }
    if let Some(directory) = &arguments.pcap {
        captures(directory, report)?;
    }
    Ok(())
}

/// A file for each check that does not pass and has packets to show.
fn captures(directory: &Path, report: &Report) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(Error::system(directory.display().to_string()))?;
    let does_not_pass = |verdict| verdict != Verdict::Pass;
    for finding in report.findings.iter().filter(|finding| does_not_pass(finding.verdict)) {
        if finding.evidence.records.is_empty() {
            continue;
        }
        let path = directory.join(format!("{}.pcapng", finding.check.name.replace('/', "-")));
        let write = || {
            let file = BufWriter::new(fs::File::create(&path)?);
            report::evidence::write(&finding.evidence, report.began, file)
        };
        write().map_err(Error::system(path.display().to_string()))?;
    }
    Ok(())
}

/// Says what is wrong that is not known; true: nothing.
pub(super) fn judge(known: &Known, report: &Report) -> Result<bool, Error> {
    let complaints = known.complaints(&report.findings);
    complaints.iter().for_each(note);
    Ok(complaints.is_empty())
}
