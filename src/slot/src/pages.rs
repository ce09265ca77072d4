//! Pages of what is listed: as much as fits into a message.

use crate::limits::MAX_PROGRAM_NAME;
use urxe_shm::control::{Cursor, MAX_MESSAGE, Resource, ResourcePage};

/// Bytes of a message around a page, in the link's messages as in a program's.
pub const AROUND_PAGE: usize = 64;

/// Bytes of a page that an object takes at most beside its program's name and process id.
const OBJECT_LEN: usize = 100;

/// Bytes of a program's name and process id as they are shown.
pub const MAX_SHOWN_NAME: usize = MAX_PROGRAM_NAME + 16;

/// Objects of a page.
pub const OBJECTS_PER_PAGE: usize = (MAX_MESSAGE - AROUND_PAGE) / (MAX_PROGRAM_NAME + OBJECT_LEN);

/// Bytes of a page that a path takes at most.
const PATH_LEN: usize = 256;

/// Paths of a page.
pub const PATHS_PER_PAGE: usize = (MAX_MESSAGE - AROUND_PAGE) / PATH_LEN;

/// Bytes of a page that what happened to a QP takes at most.
pub const HISTORY_LEN: usize = 13 * 1024;

/// Histories of a page.
pub const HISTORIES_PER_PAGE: usize = (MAX_MESSAGE - AROUND_PAGE) / HISTORY_LEN;

/// Bytes of a page that a counter's number takes at most.
pub const NUMBER_LEN: usize = 10;

/// Bytes of a page that a QP takes at most beside its numbers: the program's name and process id,
/// QPN, state and lengths.
pub const QP_LEN: usize = MAX_PROGRAM_NAME + 40;

/// The first page of these objects of a slot, each with the number that a cursor names it by.
pub fn page(slot: usize, mut objects: impl Iterator<Item = (u32, Resource)>) -> ResourcePage {
    // COUNT-017
    let page: Vec<(u32, Resource)> = objects.by_ref().take(OBJECTS_PER_PAGE).collect();
    let last = page.last().map(|&(number, _)| number).filter(|_| objects.next().is_some());
    let next = last.map(|last| behind(slot, last));
    ResourcePage { resources: page.into_iter().map(|(_, object)| object).collect(), next }
}

/// Where a page begins behind what a slot has under a number.
pub fn behind(slot: usize, number: u32) -> Cursor {
    Cursor { slot: slot as u8, after: Some(number) }
}
