//! The victim: two programs' worth of sessions, one on each device, connected by the connection
//! manager; one writes 64 bytes into memory of the other, again and again.

use super::{Result, VICTIMS_GROUP};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use urxe_verbs::cm::{ConnParam, Connection};
use urxe_verbs::{
    Access, Context, Cq, Mr, OpenOptions, Pd, Qp, QpInit, QpType, RemoteBuf, SendWr, Wc,
};

/// Between two WRITEs: nobody is kept from working by the victim.
const PAUSE: Duration = Duration::from_micros(200);

/// After that, a WRITE counts as lost.
const LOST: Duration = Duration::from_secs(20);

/// How long WRITEs took in a while, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// How many there were.
    pub writes: usize,
    pub median: f64,
    pub p99: f64,
    pub worst: f64,
}

/// A program with what it needs.
struct Side {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
}

impl Side {
    fn new(socket: &Path, device: &str) -> Result<Side> {
        let context = Context::open(&OpenOptions::new().socket(socket).device(device))?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64, Some(&context.create_comp_channel()?))?;
        let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Side { context, pd, cq, mr })
    }
}

/// Both programs.
pub struct Victim {
    near: Side,
    there: RemoteBuf,
    connection: Connection,
    accepted: Connection,
    far: Side,
    _in_group: Qp,
    /// What was written last.
    written: Cell<u64>,
}

impl Victim {
    /// Two programs that are connected.
    ///
    /// # Errors
    /// If the daemon refuses something.
    pub fn new(socket: &Path, addrs: [IpAddr; 2], port: u16) -> Result<Victim> {
        let (near, far) = (Side::new(socket, "urxe0")?, Side::new(socket, "urxe1")?);
        let timeout = Some(LOST);
        let at = SocketAddr::new(addrs[1], port);
        let listening = far.context.create_event_channel()?;
        let listener = listening.listen(at, 4)?;
        let qp = near.pd.create_qp(&QpInit::new(&near.cq))?;
        let channel = near.context.create_event_channel()?;
        let connecting = {
            let qp = qp.clone();
            std::thread::spawn(move || {
                let connecting = channel.connect(at, &qp, &ConnParam::default());
                connecting.and_then(|connection| connection.wait_established(timeout))
            })
        };
        let request = listener.wait(timeout)?.ok_or("nobody connects")?;
        let far_qp = far.pd.create_qp(&QpInit::new(&far.cq))?;
        let accepted = request.accept(&far_qp, &ConnParam::default())?.wait_established(timeout)?;
        let connection = connecting.join().map_err(|_| "the thread that connects has failed")??;
        let there = far.mr.remote_buf(..)?;
        let in_group = far.pd.create_qp(&QpInit { qp_type: QpType::Ud, ..QpInit::new(&far.cq) })?;
        in_group.start_datagrams(7)?;
        in_group.attach_mcast(VICTIMS_GROUP.into())?;
        Ok(Victim {
            near,
            there,
            connection,
            accepted,
            far,
            _in_group: in_group,
            written: Cell::new(0),
        })
    }

    /// The numbers of its QPs.
    pub fn qpns(&self) -> [u32; 2] {
        [self.connection.qp().qpn(), self.accepted.qp().qpn()]
    }

    /// Writes for so long, and looks each time whether it is there.
    ///
    /// # Errors
    /// If a WRITE fails, or does not end.
    pub fn measure(&self, time: Duration) -> Result<Latency> {
        let begun = Instant::now();
        let mut took = Vec::new();
        while begun.elapsed() < time {
            took.push(self.write()?.as_secs_f64() * 1e6);
            std::thread::sleep(PAUSE);
        }
        took.sort_by(f64::total_cmp);
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
        Ok(Latency { writes: took.len(), median: at(0.5), p99: at(0.99), worst: at(1.0) })
    }

    fn write(&self) -> Result<Duration> {
        let begun = Instant::now();
        let number = self.written.get() + 1;
        self.written.set(number);
        self.near.mr.write_at(0, &[number.to_ne_bytes(); 8].concat())?;
        let source = [self.near.mr.sge(..64)?];
        let there = self.there;
        self.connection.qp().post_send(&[SendWr::write(1, &source, there).signaled()])?;
        let mut wcs = [Wc::default(); 4];
        // Who polls and yields beside programs that compute is kept from the processor for
        // milliseconds by that alone.
        if self.near.cq.wait(&mut wcs, Some(LOST))? == 0 {
            return Err("a WRITE did not end".into());
        }
        wcs[0].check()?;
        let took = begun.elapsed();
        self.check(number)?;
        Ok(took)
    }

    /// Whether what was written last is there.
    fn check(&self, number: u64) -> Result {
        let mut there = [0; 64];
        self.far.mr.read_at(0, &mut there)?;
        match there == [number.to_ne_bytes(); 8].concat()[..] {
            true => Ok(()),
            false => Err("a WRITE has completed and is not there".into()),
        }
    }
}

/// What everybody may expect who comes while somebody else attacks: a device, and objects.
///
/// # Errors
/// If the daemon refuses something.
pub fn newcomer(socket: &Path) -> Result {
    let side = Side::new(socket, "urxe0")?;
    side.pd.create_qp(&QpInit::new(&side.cq))?;
    Ok(())
}
