//! The devices as files: the part of `/sys/class` and of `/dev` by which a stock rdma-core finds a
//! device, and much else is read from it (GIDs, for example).
//!
//! These are ordinary files in a directory beside the socket
//! ([`sysfs_directory`](urxe_shm::sysfs_directory)). Our shim leads a program's look into `/sys`
//! and `/dev` there; `urxe sysfs-overlay` lays them over the real ones.
//!
//! `counters` and `hw_counters` of a port are written anew each second, as far as they have
//! changed; what they show is thus a second old, and a little more where a slot is slow to answer.

mod counters;
mod files;
mod refresh;
mod tree;

use super::snapshot::Asker;
use crate::broker::device::RdmaDevice;
use crate::config::SocketMode;
use counters::Totals;
use files::{DeviceView, Files};
use refresh::Refresh;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use tree::Tree;
use urxe_slot::link::LinkState;

/// The devices of a daemon as files, gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Sysfs {
    /// Before the tree, so that nothing is put there while it is removed.
    _refresh: Refresh,
    tree: Tree,
    devices: Vec<PublishedFiles>,
}

/// What is there of a device.
#[derive(Debug)]
struct PublishedFiles {
    files: Files,
    /// What they were made from, if they are all up to date.
    of: Option<(LinkState, Vec<Option<IpAddr>>)>,
}

impl Sysfs {
    /// Writes all files, below a directory that is open to those to whom the socket is. What a
    /// killed daemon left there is replaced.
    pub(crate) fn create(
        directory: &Path,
        socket: SocketMode,
        devices: &[RdmaDevice],
        asker: Asker,
    ) -> io::Result<Sysfs> {
        let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
        let counters = |device| Totals::of_device(device).files(&device.name);
        let counters: Vec<Files> = devices.iter().map(counters).collect();
        let published = |(index, device): (usize, &RdmaDevice)| {
            let files = files::of_device(view(index, device, &device.gid_table()));
            PublishedFiles { files, of: None }
        };
        let devices: Vec<PublishedFiles> = devices.iter().enumerate().map(published).collect();
        let tree = Tree::create(directory, directory_mode(socket), |tree| {
            let class = files::of_class();
            let all = devices.iter().map(|device| &device.files).chain(&counters);
            let mut all = all.chain([&class]).flatten();
            all.try_for_each(|(name, content)| tree.put(name, content))
        })?;
        let refresh = Refresh::start(tree.overwriter()?, asker, names)?;
        Ok(Sysfs { _refresh: refresh, tree, devices })
    }

    /// Brings the files of a device up to date. What could not be written is tried again the next
    /// time.
    ///
    /// The directory of the device itself is never changed: libibverbs takes its time of change
    /// for the birthday of the device.
    pub(crate) fn show(&mut self, index: usize, device: &RdmaDevice) -> io::Result<()> {
        let Some(published) = self.devices.get_mut(index) else { return Ok(()) };
        let gids = device.gid_table();
        if published.of.as_ref().is_some_and(|(link, of)| *link == device.link && *of == gids) {
            return Ok(());
        }
        published.of = None;
        let wanted = files::of_device(view(index, device, &gids));
        for (name, content) in &wanted {
            if published.files.get(name) != Some(content) {
                self.tree.put(name, content)?;
                published.files.insert(name.clone(), content.clone());
            }
        }
        let gone: Vec<String> =
            published.files.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in gone {
            self.tree.remove(&name)?;
            published.files.remove(&name);
        }
        published.of = Some((device.link.clone(), gids));
        Ok(())
    }
}

fn view<'a>(index: usize, device: &'a RdmaDevice, gids: &'a [Option<IpAddr>]) -> DeviceView<'a> {
    DeviceView { index, name: &device.name, guid: device.guid, link: &device.link, gids }
}

/// The mode of a directory that is open to those who may write to the socket, and so connect.
fn directory_mode(socket: SocketMode) -> u32 {
    let open_if = |writable, bits| if socket.0 & writable != 0 { bits } else { 0 };
    0o700 | open_if(0o020, 0o050) | open_if(0o002, 0o005)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_to_connect_is_permission_to_read() {
        let mode = |socket| directory_mode(SocketMode(socket));
        assert_eq!(mode(0o600), 0o700);
        assert_eq!(mode(0o660), 0o750);
        assert_eq!(mode(0o666), 0o755);
        assert_eq!(mode(0o644), 0o700, "to read a socket is of no use");
    }
}
