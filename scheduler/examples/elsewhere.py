#!/usr/bin/env python3
"""Compares the default policy with FGD on clusters and mixes that are not those of the published experiment.

  elsewhere.py DATA_DIR SCHEDULER [--seeds 3] [--first-seed 900] [--only g8,training]

DATA_DIR   folder with the trace's node and task lists and check_placements.py
SCHEDULER  the program `aliquot-scheduler`
--only     only cases whose name contains one of these

Every placement is checked. Marked are means of allocation more than 0.1 points below FGD's, and of tasks for several
devices that were left out by 100 % of demand above FGD's. Exit status 1 if a placement violates something, or a task
was refused although it fitted.
"""
import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile

TRACES = ['default', 'cpu250', 'gpushare40', 'multigpu20', 'gpuspec33']
TASK_FIELDS = ['name', 'cpu_milli', 'memory_mib', 'num_gpu', 'gpu_milli', 'gpu_spec']
NODE_FIELDS = ['sn', 'cpu_milli', 'memory_mib', 'gpu', 'model']
POLICIES = ['fgd', 'default']


def read(path):
    with open(path, newline='') as source:
        return list(csv.DictReader(source))


def write(path, fields, rows):
    with open(path, 'w', newline='') as target:
        writer = csv.DictWriter(target, fields, extrasaction='ignore', lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)


def node(number, cpu_milli, memory_mib, gpu, model):
    return dict(zip(NODE_FIELDS, (f'n{number:05d}', cpu_milli, memory_mib, gpu, model)))


def cluster(name, chance, listed):
    """Nodes: the listed ones or some of them, or machines of few sorts."""
    if name == 'openb':
        return listed
    if name in ('quarter', 'tiny'):
        return chance.sample(listed, {'quarter': 300, 'tiny': 25}[name])
    if name == 'g4g8':
        return [node(i, (128000, 64000)[i % 2], 262144, (8, 4)[i % 2], 'AB'[i % 2]) for i in range(160)]
    if name == 'cpupoor':
        return [node(i, 8000 * g, 32768 * g, g, 'A' if g == 8 else 'B') for i, g in enumerate([8, 8, 4, 2, 1] * 50)]
    if name == 'cpurich':
        return [node(i, 24000 * g, 131072 * g, g, 'A' if g == 8 else 'B') for i, g in enumerate([8, 4, 2] * 60)]
    gpus, nodes, cpu_milli, memory_mib = {
        'g1': (1, 500, 16000, 65536), 'g2': (2, 400, 32000, 131072),
        'g8': (8, 150, 96000, 393216), 'g16': (16, 60, 256000, 1048576)}[name]
    return [node(i, cpu_milli, memory_mib, gpus, 'A') for i in range(nodes)]


def task(name, chance):
    """One task of a mix: CPU, memory, devices, thousandths of each, models."""
    one, odds = chance.choice, chance.random()
    if name == 'quarters':
        return one([2000, 4000]), 8192, 1, one([250, 500, 750, 1000]), ''
    if name == 'fine':
        return one([1000, 2000, 3000]), 4096, 1, chance.randrange(10, 1000, 10), ''
    if name == 'uniform':
        return ((one([4000, 8000]), 16384, 1, 1000, '') if odds < 0.5
                else (one([2000, 4000]), 8192, 1, one([100, 200, 300, 400, 600, 700, 800, 900]), '') if odds < 0.9
                else (16000, 32768, 2, 1000, '') if odds < 0.95 else (32000, 131072, 4, 1000, ''))
    if name == 'training':
        devices = 8 if odds < 0.2 else 4 if odds < 0.35 else 2 if odds < 0.55 else 1
        return 8000 * devices, 32768 * devices, devices, 1000, ''
    if name == 'bimodal':
        return 4000, 8192, 1, one([600, 600, 600, 350, 1000, 1000]), ''
    if name == 'awkward':
        return one([3000, 5000, 7000, 11000]), one([4096, 24576]), 1, one([510, 510, 340, 810, 1000, 1000, 1000]), ''
    if name == 'cpuheavy':
        return ((one([12000, 16000, 20000]), 16384, 0, 0, '') if odds < 0.3
                else (one([6000, 12000, 18000]), 32768, 1, one([500, 1000, 1000, 330]), ''))
    if name == 'eights':
        return (64000, 262144, 8, 1000, '') if odds < 0.06 else (4000, 16384, 1, one([1000, 500, 250, 125]), '')
    models = one(['A', 'B', '', '', 'A|B'])
    return ((one([4000, 8000]), 16384, 1, one([1000, 1000, 500, 300]), models) if odds < 0.9
            else (16000, 65536, 2, 1000, models))


def mix(name, chance, data):
    if name not in TRACES:
        return [task(name, chance) for _ in range(3000)]
    tasks = []
    for row in read(os.path.join(data, f'openb_pod_list_{name}.csv')):
        cpu, memory, devices, milli = (int(float(row[field])) for field in TASK_FIELDS[1:5])
        tasks.append((cpu, memory, devices, min(milli, 1000) if devices else 0,
                      (row.get('gpu_spec') or '') if devices else ''))
    return tasks


def cases():
    yield from (('openb', trace) for trace in TRACES)
    for name in ('quarter', 'tiny', 'g8', 'g2', 'g4g8', 'g16', 'cpupoor', 'cpurich', 'g1'):
        yield from ((name, trace) for trace in TRACES[:4])
    yield 'quarter', 'gpuspec33'
    for name in ('openb', 'g8', 'g2', 'g4g8', 'cpupoor', 'cpurich', 'g16'):
        made = ('quarters', 'fine', 'uniform', 'training', 'bimodal', 'awkward', 'cpuheavy', 'eights')
        yield from ((name, other) for other in made)
    yield from ((name, 'restricted') for name in ('g4g8', 'cpupoor', 'cpurich'))


def arrivals(tasks, capacity, chance):
    """Each task once, then drawn again, until demand is 1.3 times the capacity."""
    order = chance.sample(tasks, len(tasks))
    demand, last = 0, 0
    while demand < 1.3 * capacity:
        if last == len(order):
            order.append(chance.choice(tasks))
        demand += order[last][2] * order[last][3]
        last += 1
    return order[:last]


def hosts(nodes, wanted):
    """Whether a task could run on any of the nodes at all."""
    cpu, memory, devices, _, models = wanted
    return any(int(n['cpu_milli']) >= cpu and int(n['memory_mib']) >= memory and int(n['gpu']) >= devices
               and (not models or n['model'] in models.split('|')) for n in nodes)


def play(args, checker, listed, name, mixed, seed):
    """Results by policy, and what the checker found wrong."""
    chance = random.Random(f'{name}/{mixed}/{seed}')
    nodes = [dict(n) for n in cluster(name, chance, listed)]
    chance.shuffle(nodes)
    tasks = mix(mixed, chance, args.data)
    possible = {wanted: hosts(nodes, wanted) for wanted in set(tasks)}
    tasks = [wanted for wanted in tasks if possible[wanted]]
    order = arrivals(tasks, sum(int(n['gpu']) for n in nodes) * 1000, chance)
    results, wrong = {}, []
    with tempfile.TemporaryDirectory() as folder:
        listing, arriving, typical, placed = (os.path.join(folder, file) for file in 'natp')
        write(listing, NODE_FIELDS, nodes)
        for path, rows in ((arriving, order), (typical, tasks)):
            write(path, TASK_FIELDS, [dict(zip(TASK_FIELDS, (f't{i}', *row))) for i, row in enumerate(rows)])
        for policy in POLICIES:
            out = subprocess.run(
                [args.scheduler, 'replay', '--nodes', listing, '--arrivals', arriving, '--typical', typical,
                 '--policy', policy, '--placements', placed], check=True, capture_output=True, text=True).stdout
            found = checker.check(listing, arriving, placed, typical, refusals=True)
            if found['violations'] or found['refused_though_feasible'] or found['moves']:
                wrong.append((policy, seed, found['violations'], found['refused_though_feasible']))
            summary = json.loads(out)
            results[policy] = (summary['allocated_at_100'] or 0, summary['allocated_at_130'] or 0,
                               summary['unplaced_at_100']['several_devices'])
    return results, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data')
    parser.add_argument('scheduler')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--first-seed', type=int, default=900)
    parser.add_argument('--only', default='')
    args = parser.parse_args()
    sys.path.insert(0, args.data)
    import check_placements

    listed = read(os.path.join(args.data, 'openb_node_list_gpu_node.csv'))
    failed = False
    for name, mixed in cases():
        case = f'{name}/{mixed}'
        if not any(part in case for part in args.only.split(',')):
            continue
        rows = []
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            results, wrong = play(args, check_placements, listed, name, mixed, seed)
            rows.append(results)
            failed = failed or bool(wrong)
            if wrong:
                print(f'{case}: {wrong}', file=sys.stderr)
        fgd, ours = ([sum(row[policy][i] for row in rows) / len(rows) for i in range(3)] for policy in POLICIES)
        marks = (' less allocated' if min(ours[0] - fgd[0], ours[1] - fgd[1]) < -0.1 else '',
                 ' more left out' if ours[2] > fgd[2] else '')
        print(f'{case:22} fgd {fgd[0]:6.2f} / {fgd[1]:6.2f}; {fgd[2]:5.1f}   '
              f'default {ours[0]:6.2f} / {ours[1]:6.2f}; {ours[2]:5.1f}   '
              f'{ours[0] - fgd[0]:+.2f} / {ours[1] - fgd[1]:+.2f}{"".join(marks)}', flush=True)
    sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
