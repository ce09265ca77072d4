"""What a project that uses verbs may test on urxe: `pytest packaging/ci/pytest`."""

import time


def pingpong(device):
    server = device.start('ibv_rc_pingpong', '-g', '0')
    for _ in range(50):
        client = device.run('ibv_rc_pingpong', '-g', '0', 'localhost', check=False)
        if client.returncode == 0:
            break
        time.sleep(0.1)
    said, problems = server.communicate(timeout=60)
    assert client.returncode == 0 and server.returncode == 0, client.stderr + problems
    assert '8192000 bytes' in said


def test_messages_arrive(device):
    pingpong(device)


def test_messages_arrive_where_packets_are_lost(lossy_device):
    pingpong(lossy_device)


def test_a_mistake_is_explained(device):
    done = device.run('ibv_rc_pingpong', '-g', '77', check=False)
    assert done.returncode != 0
    assert '77' in done.stderr
