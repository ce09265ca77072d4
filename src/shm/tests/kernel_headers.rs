//! Our layout is that of the kernel's own headers, as the C compiler sees them.

#![cfg(not(loom))]

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use urxe_shell::testing::{assert_compiles, could_not_run};
use urxe_shm::ring::layout::*;
use urxe_types::{Sge, WcOpcode};

/// Appends C assertions that a kernel structure has our type's size and its fields our offsets.
macro_rules! same_layout {
    ($c:ident, $ours:ident is $theirs:literal, { $($field:ident = $path:literal),* $(,)? }) => {
        same_size!($c, $ours is concat!("sizeof(", $theirs, ")"));
        $(writeln!(
            $c,
            "_Static_assert(offsetof({}, {}) == {}, \"{}\");",
            $theirs, $path, offset_of!($ours, $field), $path,
        ).unwrap();)*
    };
}

macro_rules! same_size {
    ($c:ident, $ours:ident is $theirs:expr) => {
        writeln!($c, "_Static_assert({} == {}, \"size\");", $theirs, size_of::<$ours>()).unwrap();
    };
}

macro_rules! same_number {
    ($c:ident, { $($ours:expr => $theirs:literal),* $(,)? }) => {
        $(writeln!($c, "_Static_assert({} == {}, \"{}\");", $theirs, $ours, $theirs).unwrap();)*
    };
}

#[test]
fn the_kernel_headers_say_the_same() {
    let headers = ["/usr/include/rdma/rdma_user_rxe.h", "/usr/include/rdma/ib_user_verbs.h"];
    if let Some(missing) = headers.iter().find(|header| !Path::new(header).exists()) {
        return could_not_run(&format!("no {missing} (package linux-libc-dev)"));
    }
    let mut c = String::from(
        "#include <stddef.h>\n#include <linux/in.h>\n#include <linux/in6.h>\n\
         #include <rdma/rdma_user_rxe.h>\n#include <rdma/ib_user_verbs.h>\n",
    );
    same_layout!(c, QueueHeader is "struct rxe_queue_buf", {
        log2_elem_size = "log2_elem_size", index_mask = "index_mask", flags = "pad_1",
        producer = "producer_index", consumer = "consumer_index", armed = "pad_3[15]",
    });
    same_layout!(c, Sge is "struct rxe_sge", { addr = "addr", length = "length", lkey = "lkey" });
    same_layout!(c, DmaInfo is "struct rxe_dma_info", {
        length = "length", resid = "resid", cur_sge = "cur_sge", num_sge = "num_sge",
        sge_offset = "sge_offset", reserved = "reserved",
    });
    same_layout!(c, SendEntry is "struct rxe_send_wqe", {
        wr_id = "wr.wr_id", opcode = "wr.opcode", send_flags = "wr.send_flags",
        imm_or_rkey = "wr.ex.imm_data", args = "wr.wr", status = "status", state = "state",
        iova = "iova", scratch = "mask", dma = "dma",
    });
    same_layout!(c, RecvEntry is "struct rxe_recv_wqe", { wr_id = "wr_id", dma = "dma" });
    let args = "sizeof(((struct rxe_send_wr *)0)->wr)";
    writeln!(c, "_Static_assert({args} == {}, \"args\");", size_of::<[u64; 15]>()).unwrap();
    same_size!(c, RdmaArgs is "sizeof(((struct rxe_send_wr *)0)->wr.rdma)");
    same_size!(c, AtomicArgs is "sizeof(((struct rxe_send_wr *)0)->wr.atomic)");
    same_size!(c, UdArgs is "sizeof(((struct rxe_send_wr *)0)->wr.ud)");
    same_size!(c, MwArgs is "sizeof(((struct rxe_send_wr *)0)->wr.mw)");
    let arguments = [
        ("rdma.remote_addr", offset_of!(RdmaArgs, remote_addr)),
        ("rdma.rkey", offset_of!(RdmaArgs, rkey)),
        ("atomic.remote_addr", offset_of!(AtomicArgs, remote_addr)),
        ("atomic.compare_add", offset_of!(AtomicArgs, compare_add)),
        ("atomic.swap", offset_of!(AtomicArgs, swap)),
        ("atomic.rkey", offset_of!(AtomicArgs, rkey)),
        ("ud.remote_qpn", offset_of!(UdArgs, remote_qpn)),
        ("ud.remote_qkey", offset_of!(UdArgs, remote_qkey)),
        ("ud.pkey_index", offset_of!(UdArgs, pkey_index)),
        ("ud.ah_num", offset_of!(UdArgs, ah_num)),
        ("ud.av", offset_of!(UdArgs, av)),
        ("mw.addr", offset_of!(MwArgs, addr)),
        ("mw.length", offset_of!(MwArgs, length)),
        ("mw.mr_lkey", offset_of!(MwArgs, mr_lkey)),
        ("mw.mw_rkey", offset_of!(MwArgs, mw_rkey)),
        ("mw.rkey", offset_of!(MwArgs, rkey)),
        ("mw.access", offset_of!(MwArgs, access)),
    ];
    for (field, offset) in arguments {
        let offset = offset_of!(SendEntry, args) + offset;
        let theirs = format!("offsetof(struct rxe_send_wr, wr.{field})");
        writeln!(c, "_Static_assert({theirs} == {offset}, \"{field}\");").unwrap();
    }
    same_layout!(c, Av is "struct rxe_av", {
        port = "port_num", network_type = "network_type", dmac = "dmac", dgid = "grh.dgid",
        flow_label = "grh.flow_label", sgid_index = "grh.sgid_index",
        hop_limit = "grh.hop_limit", traffic_class = "grh.traffic_class",
        sgid_addr = "sgid_addr", dgid_addr = "dgid_addr",
    });
    same_layout!(c, CqEntry is "struct ib_uverbs_wc", {
        wr_id = "wr_id", status = "status", opcode = "opcode", vendor_err = "vendor_err",
        byte_len = "byte_len", imm_or_rkey = "ex", qp_num = "qp_num", src_qp = "src_qp",
        wc_flags = "wc_flags", pkey_index = "pkey_index", slid = "slid", sl = "sl",
        dlid_path_bits = "dlid_path_bits", port_num = "port_num", reserved = "reserved",
    });
    same_number!(c, {
        WR_RDMA_WRITE => "IB_UVERBS_WR_RDMA_WRITE",
        WR_RDMA_WRITE_WITH_IMM => "IB_UVERBS_WR_RDMA_WRITE_WITH_IMM",
        WR_SEND => "IB_UVERBS_WR_SEND",
        WR_SEND_WITH_IMM => "IB_UVERBS_WR_SEND_WITH_IMM",
        WR_RDMA_READ => "IB_UVERBS_WR_RDMA_READ",
        WR_COMPARE_SWAP => "IB_UVERBS_WR_ATOMIC_CMP_AND_SWP",
        WR_FETCH_ADD => "IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD",
        WR_LOCAL_INV => "IB_UVERBS_WR_LOCAL_INV",
        WR_BIND_MW => "IB_UVERBS_WR_BIND_MW",
        WR_SEND_WITH_INV => "IB_UVERBS_WR_SEND_WITH_INV",
        WcOpcode::Send as u32 => "IB_UVERBS_WC_SEND",
        WcOpcode::RdmaWrite as u32 => "IB_UVERBS_WC_RDMA_WRITE",
        WcOpcode::RdmaRead as u32 => "IB_UVERBS_WC_RDMA_READ",
        WcOpcode::CompareSwap as u32 => "IB_UVERBS_WC_COMP_SWAP",
        WcOpcode::FetchAdd as u32 => "IB_UVERBS_WC_FETCH_ADD",
        WcOpcode::BindMw as u32 => "IB_UVERBS_WC_BIND_MW",
        WcOpcode::LocalInvalidate as u32 => "IB_UVERBS_WC_LOCAL_INV",
        NETWORK_IPV4 => "RXE_NETWORK_TYPE_IPV4",
        NETWORK_IPV6 => "RXE_NETWORK_TYPE_IPV6",
    });

    // Since Linux 6.3; older headers have nothing to compare with.
    let rxe = std::fs::read_to_string(headers[0]).unwrap();
    let verbs = std::fs::read_to_string(headers[1]).unwrap();
    if rxe.contains("} flush;") && verbs.contains("IB_UVERBS_WR_FLUSH") {
        same_size!(c, FlushArgs is "sizeof(((struct rxe_send_wr *)0)->wr.flush)");
        let arguments = [
            ("remote_addr", offset_of!(FlushArgs, remote_addr)),
            ("length", offset_of!(FlushArgs, length)),
            ("rkey", offset_of!(FlushArgs, rkey)),
            ("type", offset_of!(FlushArgs, kind)),
            ("level", offset_of!(FlushArgs, level)),
        ];
        for (field, offset) in arguments {
            let offset = offset_of!(SendEntry, args) + offset;
            let theirs = format!("offsetof(struct rxe_send_wr, wr.flush.{field})");
            writeln!(c, "_Static_assert({theirs} == {offset}, \"{field}\");").unwrap();
        }
        same_number!(c, {
            WR_FLUSH => "IB_UVERBS_WR_FLUSH",
            WR_ATOMIC_WRITE => "IB_UVERBS_WR_ATOMIC_WRITE",
            WcOpcode::Flush as u32 => "IB_UVERBS_WC_FLUSH",
            WcOpcode::AtomicWrite as u32 => "IB_UVERBS_WC_ATOMIC_WRITE",
        });
    }

    assert_compiles(&c);
}
