//! Taps of the data paths: whose packets each sees, as programs come and go.

use crate::limits::MAX_TAPS;
use crate::link::Viewer;
use crate::session::{Program, SlotCtx};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use urxe_nic::{OwnerId, Owners, TapSpec};
use urxe_port::capture::Filter;
use urxe_shm::control::CaptureSpec;
use urxe_wire::Opcode;

/// Which programs a tap sees.
pub(crate) struct TapRule {
    number: u64,
    device: usize,
    viewer: Viewer,
    programs: Vec<String>,
}

impl TapRule {
    fn sees(&self, program: &Program) -> bool {
        // TAP-001
        self.viewer.may_see(program.uid) && is_named(&self.programs, &program.name)
    }
}

/// Begins a tap of a device, or does not, where there are too many.
pub(crate) fn begin(
    ctx: &mut SlotCtx,
    rule: (u64, usize, Viewer),
    spec: CaptureSpec,
    pipe: OwnedFd,
) {
    let (number, device, viewer) = rule;
    let Some(nic) = ctx.devices.get_mut(device).map(|device| &mut device.nic) else { return };
    if ctx.taps.iter().filter(|rule| rule.device == device).count() >= MAX_TAPS {
        return;
    }
    let rule = TapRule { number, device, viewer, programs: spec.programs.clone() };
    let seen = ctx.programs.iter().filter(|(_, program)| rule.sees(program));
    let owners = match viewer == Viewer::Everybody && rule.programs.is_empty() {
        true => Owners::All,
        false => Owners::Of(seen.map(|(owner, _)| *owner).collect::<BTreeSet<OwnerId>>()),
    };
    nic.add_tap(tap_spec(number, owners, &spec, pipe));
    ctx.taps.push(rule);
}

/// What a tap begins with that was asked for so.
pub fn tap_spec(number: u64, owners: Owners, spec: &CaptureSpec, pipe: OwnedFd) -> TapSpec {
    let opcodes = spec.opcodes.iter().filter_map(|&byte| Opcode::from_byte(byte)).collect();
    let filter = Filter { qps: spec.qps.clone(), peers: spec.peers.clone(), opcodes };
    TapSpec { number, owners, filter, snaplen: spec.snaplen as usize, pipe }
}

/// Ends a tap.
pub(crate) fn end(ctx: &mut SlotCtx, number: u64) {
    ctx.taps.retain(|rule| rule.number != number);
    ctx.devices.iter_mut().for_each(|device| device.nic.remove_tap(number));
}

/// A program has said who it is.
pub(crate) fn admit(ctx: &mut SlotCtx, owner: OwnerId, program: &Program) {
    for rule in ctx.taps.iter().filter(|rule| rule.sees(program)) {
        ctx.devices[rule.device].nic.admit_to_tap(rule.number, owner);
    }
}

/// Nothing is left of a program.
pub(crate) fn forget(ctx: &mut SlotCtx, owner: OwnerId) {
    if !ctx.taps.is_empty() {
        ctx.devices.iter_mut().for_each(|device| device.nic.forget_owner(owner));
    }
}

/// Whether a program, of which the process id stands in brackets behind its name, is among those
/// that were named by either.
fn is_named(named: &[String], program: &str) -> bool {
    let Some((name, id)) = program.strip_suffix(']').and_then(|shown| shown.rsplit_once('['))
    else {
        return false;
    };
    named.is_empty() || named.iter().any(|named| named == name || named == id || named == program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_by_their_process_or_their_name() {
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            is_named(&names, "ib_write_bw[123]")
        };
        for names in [&[][..], &["ib_write_bw"], &["123"], &["ib_write_bw[123]"], &["x", "123"]] {
            assert!(named(names), "{names:?}");
        }
        for names in ["ib_write", "12", "ib_write_bw[12]", "[123]", ""] {
            assert!(!named(&[names]), "{names:?}");
        }
    }
}
