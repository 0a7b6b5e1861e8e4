use proptest::prelude::*;

use super::*;

/// Something that is done to a list or a queue.
#[derive(Debug, Clone, Copy)]
enum Deed {
    PushBack,
    PushFront,
    PopFront,
    PopBack,
    Insert(usize),
    Remove(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let at = 0_usize..4;
    prop_oneof![
        Just(Deed::PushBack),
        Just(Deed::PushFront),
        Just(Deed::PopFront),
        Just(Deed::PopBack),
        at.clone().prop_map(Deed::Insert),
        at.prop_map(Deed::Remove),
    ]
}

proptest! {
    #[test]
    fn a_list_is_what_a_vector_is(deeds in proptest::collection::vec(deed(), 0..30)) {
        let (mut few, mut list) = (Few::new(), Vec::new());
        for (number, deed) in deeds.into_iter().enumerate() {
            match deed {
                Deed::PushBack => {
                    few.push(number);
                    list.push(number);
                }
                Deed::Insert(at) if at <= list.len() => {
                    few.insert(at, number);
                    list.insert(at, number);
                }
                Deed::Remove(at) if at < list.len() => prop_assert_eq!(few.remove(at), list.remove(at)),
                Deed::PopFront if list.len() > 2 => {
                    few.extend([7, 8]);
                    list.extend([7, 8]);
                }
                _ => {}
            }
            prop_assert_eq!(&*few, &*list);
            prop_assert_eq!(few.clone().into_iter().collect::<Few<_>>(), Few::from(list.clone()));
            few.iter_mut().for_each(|one| *one += 1);
            list.iter_mut().for_each(|one| *one += 1);
        }
    }

    #[test]
    fn a_queue_is_what_a_queue_is(deeds in proptest::collection::vec(deed(), 0..30)) {
        let (mut few, mut queue) = (FewQueue::new(), VecDeque::new());
        for (number, deed) in deeds.into_iter().enumerate() {
            match deed {
                Deed::PushBack => {
                    few.push_back(number);
                    queue.push_back(number);
                }
                Deed::PushFront => {
                    few.push_front(number);
                    queue.push_front(number);
                }
                Deed::PopFront | Deed::PopBack => prop_assert_eq!(few.pop_front(), queue.pop_front()),
                Deed::Insert(at) | Deed::Remove(at) => prop_assert_eq!(few.get_mut(at), queue.get_mut(at)),
            }
            prop_assert!(few.iter().eq(&queue) && few.iter().rev().eq(queue.iter().rev()));
            prop_assert_eq!((few.len(), few.is_empty()), (queue.len(), queue.is_empty()));
            prop_assert_eq!((few.front(), few.back()), (queue.front(), queue.back()));
            prop_assert!((0..queue.len()).all(|at| few[at] == queue[at]));
            few.iter_mut().for_each(|one| *one += 1);
            queue.iter_mut().for_each(|one| *one += 1);
        }
    }

    #[test]
    fn a_map_is_what_a_map_is(deeds in proptest::collection::vec((deed(), 0_u8..4), 0..30)) {
        let (mut few, mut map) = (FewMap::new(), BTreeMap::new());
        for (number, (deed, key)) in deeds.into_iter().enumerate() {
            match deed {
                Deed::PushBack | Deed::PushFront | Deed::Insert(_) => {
                    prop_assert_eq!(few.insert(key, number), map.insert(key, number));
                }
                Deed::PopFront | Deed::Remove(_) => prop_assert_eq!(few.remove(&key), map.remove(&key)),
                Deed::PopBack => prop_assert_eq!(few.get_mut(&key), map.get_mut(&key)),
            }
            prop_assert!(few.iter().eq(&map) && few.keys().eq(map.keys()) && few.values().eq(map.values()));
            prop_assert_eq!((few.len(), few.is_empty()), (map.len(), map.is_empty()));
            prop_assert_eq!((few.get(&key), few.contains_key(&key)), (map.get(&key), map.contains_key(&key)));
            prop_assert!(few.clone().into_iter().eq(map.clone()));
            few.iter_mut().for_each(|(_, value)| *value += 1);
            map.iter_mut().for_each(|(_, value)| *value += 1);
        }
    }
}

#[test]
fn one_entry_asks_for_no_memory() {
    let list: Few<u64> = [7].into_iter().collect();
    let map: FewMap<u64, u64> = [(7, 8)].into_iter().collect();
    let mut queue = FewQueue::new();
    (0..100).for_each(|number| {
        queue.push_back(number);
        assert_eq!(queue.pop_front(), Some(number));
    });
    assert!(matches!(list.0, Inner::One([7])));
    assert!(map.one == Some((7, 8)) && map.more.is_none());
    assert!(queue.rest.is_none());
    assert_eq!(size_of::<Few<std::ops::Range<u64>>>(), size_of::<Vec<u64>>(), "and takes no more room than a vector");
}

#[test]
fn a_list_that_is_read_has_room_for_what_came_and_no_more() {
    for count in [0, 1, 2, 3, 1000, 16_385] {
        let entries: Vec<u32> = (0..count).collect();
        let read: Few<u32> = postcard::from_bytes(&postcard::to_allocvec(&entries).unwrap()).unwrap();
        assert_eq!(*read, *entries);
        match read.0 {
            Inner::More(more) => assert_eq!(more.capacity(), entries.len()),
            Inner::None | Inner::One(_) => assert!(count < 2),
        }
    }
    // Who says that there are more brings them, or is refused.
    let mut short = postcard::to_allocvec(&[7_u32; 3]).unwrap();
    short[0] = 100;
    assert!(postcard::from_bytes::<Few<u32>>(&short).is_err());
}
