"""Chinese chats: facts stated and recalled, and sums.

Owns their grammar; they share only the type of a fact with the English chats.
"""

# ruff: noqa: RUF001 - full-width punctuation is what Chinese text uses.
# ruff: noqa: SIM905 - literals would take one line a word.

from __future__ import annotations

from random import Random

from kvreg_service.reference_model.grammar.facts import Fact, draw_facts
from kvreg_service.reference_model.grammar.messages import Message, answer, system, user
from kvreg_service.reference_model.grammar.wordlists import draw_digits

NAMES = "小明 小红 小花 小虎 小白 小黑 阿宝 豆豆 乐乐 王芳 李强 张伟 刘洋 陈静".split()
CITIES = "上海 北京 广州 杭州 成都 南京 西安 武汉 苏州 天津".split()
COLOURS = "红色 蓝色 绿色 黄色 白色 黑色 紫色 灰色".split()
DAYS = "星期一 星期二 星期三 星期四 星期五 星期六 星期日".split()
SYSTEM_PROMPTS = ["你是一个乐于助人的助手。", "你是一个助手，请简短回答。"]

# There are few more keys than this; beyond it a fact may be stated again with another value.
_MAX_DISTINCT_FACTS = 8


def _fact(key: str, statement: str, confirmation: str, question: str, value: str) -> Fact:
    # There are no titles and unknown facts in Chinese.
    return Fact(key, statement, confirmation, question, value, topic="", unknown="")


def chinese_fact(rng: Random) -> Fact:
    """A code, a number, a name, a favourite colour, a city or a day."""
    match rng.randrange(6):
        case 0:
            thing = rng.choice(["柜子密码", "门禁密码", "车库密码"])
            value = draw_digits(rng, 4)
            return _fact(
                thing, f"我的{thing}是{value}", f"你的{thing}是{value}", f"我的{thing}是多少", value
            )
        case 1:
            thing = rng.choice(["工号", "房间号", "座位号"])
            value = draw_digits(rng, 3)
            return _fact(
                thing, f"我的{thing}是{value}", f"你的{thing}是{value}", f"我的{thing}是多少", value
            )
        case 2:
            thing = rng.choice(["猫", "狗", "妹妹", "哥哥"])
            value = rng.choice(NAMES)
            return _fact(
                thing, f"我的{thing}叫{value}", f"你的{thing}叫{value}", f"我的{thing}叫什么", value
            )
        case 3:
            value = rng.choice(COLOURS)
            return _fact("c", f"我最喜欢{value}", f"你最喜欢{value}", "我最喜欢什么颜色", value)
        case 4:
            value = rng.choice(CITIES)
            return _fact("l", f"我住在{value}", f"你住在{value}", "我住在哪里", value)
        case _:
            event = rng.choice(["会议", "考试", "聚会", "发布"])
            value = rng.choice(DAYS)
            stated = f"{event}在{value}"
            return _fact(f"d{event}", stated, stated, f"{event}在哪一天", value)


def chinese_messages(rng: Random) -> list[Message]:
    """A whole chat of two to five turns."""
    messages = [system(rng.choice(SYSTEM_PROMPTS))] if rng.random() < 0.8 else []
    told: list[Fact] = []
    for _ in range(rng.randint(2, 5)):
        draw = rng.random()
        if draw < 0.4 or not told:
            used_keys = [fact.key for fact in told] if len(told) < _MAX_DISTINCT_FACTS else ()
            (fact,) = draw_facts(rng, 1, chinese_fact, used_keys)
            told.append(fact)
            messages += [
                user(f"{fact.statement}。"),
                answer(
                    f"好的，我记住了：{fact.confirmation}。",
                    "zh_tell",
                    fact.value,
                    "用户告诉我一件事。",
                ),
            ]
        elif draw < 0.85:
            fact = rng.choice(told)
            messages += [
                user(f"{fact.question}？"),
                answer(
                    f"{fact.confirmation}。这是你之前告诉我的。",
                    "zh_recall",
                    fact.value,
                    f"之前说过：{fact.confirmation}。",
                ),
            ]
        else:
            first, second = rng.randint(1, 10), rng.randint(1, 10)
            messages += [
                user(f"{first}加{second}等于多少？"),
                answer(
                    f"{first}加{second}等于{first + second}。",
                    "zh_arith",
                    f"等于{first + second}",
                    f"我来算：{first}加{second}。",
                ),
            ]
    return messages
