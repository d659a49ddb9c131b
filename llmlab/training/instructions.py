"""What the target is asked when it writes the text a draft head learns from: forms of question about subjects."""

from __future__ import annotations

import random

SUBJECTS = (
    "the water cycle", "photosynthesis", "volcanoes", "the moon's phases", "black holes", "earthquakes", "whales",
    "honey bees", "coral reefs", "the human heart", "sleep", "vaccines", "vitamins", "running shoes", "swimming",
    "chess", "football", "the Olympic Games", "jazz", "the piano", "painting with watercolours", "photography",
    "poetry", "detective novels", "theatre", "the Roman Empire", "ancient Egypt", "the Silk Road", "the printing press",
    "the industrial revolution", "the French Revolution", "the Great Wall of China", "Paris", "Japan", "Brazil",
    "the Sahara", "mountain climbing", "camping", "gardening", "house plants", "baking bread", "pasta", "tea", "coffee",
    "chocolate", "healthy breakfasts", "saving money", "credit cards", "small businesses", "job interviews",
    "working from home", "time management", "public speaking", "learning a language", "mathematics homework",
    "fractions", "probability", "prime numbers", "triangles", "gravity", "magnets", "electric cars", "solar panels",
    "recycling", "climate change", "the internet", "computer memory", "databases", "encryption", "search engines",
    "artificial intelligence", "video games", "smartphones", "robots", "airplanes", "trains", "bicycles", "bridges",
    "cats", "dogs", "horses", "birds", "spiders", "dinosaurs", "the ocean", "rivers", "rain forests", "deserts",
    "friendship", "honesty", "patience", "moving to a new city", "birthday parties", "libraries", "museums", "farming",
)  # fmt: skip

QUESTIONS = (
    "Explain {} to a ten-year-old child.",
    "Write a short paragraph about {}.",
    "Give me five interesting facts about {}.",
    "What should a beginner know about {}?",
    "List three advantages and three disadvantages of {}.",
    "Write a short story in which {} plays a part.",
    "Write a poem about {}.",
    "Write a friendly email to a colleague about {}.",
    "Why does {} matter to people today?",
    "What are common misunderstandings about {}?",
    "Summarize what is known about {} in two sentences.",
    "Write a dialogue between a teacher and a student about {}.",
    "What questions would you ask an expert on {}?",
    "Give step-by-step advice to somebody who wants to get started with {}.",
    "Write a quiz with three questions and answers about {}.",
    "Compare {} with something similar.",
    "How has our view of {} changed over time?",
    "Tell me about the history of {}.",
    "Write a title and an introduction for an article about {}.",
    "Describe {} using a metaphor, and explain the metaphor.",
    "Make a table of important terms about {} and what they mean.",
    "What is the best way to teach {} in school?",
    "I know nothing about {}. Where do I begin?",
    "Write a product description that has to do with {}.",
)

TASKS = (
    "reverses a string", "checks whether a number is prime", "counts the words in a text", "sorts a list of numbers",
    "finds the largest number in a list", "computes the factorial of a number", "prints the first Fibonacci numbers",
    "removes duplicates from a list", "checks whether a word is a palindrome", "reads a file line by line",
    "merges two dictionaries", "computes the average of a list", "converts Celsius to Fahrenheit",
    "finds the longest word in a sentence", "flattens a nested list", "counts vowels in a string",
    "computes the greatest common divisor", "generates a random password", "parses a CSV file",
    "implements binary search", "implements a stack", "implements a queue", "transposes a matrix",
    "checks whether two strings are anagrams", "formats a date", "downloads a web page", "counts how often words occur",
    "splits a list into chunks", "measures how long a function takes", "writes a dictionary to a JSON file",
    "validates an email address", "finds the second largest number", "computes compound interest",
    "draws a triangle of stars", "rolls two dice", "plays rock, paper, scissors",
)  # fmt: skip

PROGRAMS = (
    "Write a Python function that {}.",
    "Write a Python function that {}, and explain how it works.",
    "Show me how to write code that {}, with an example of its use.",
    "Write a JavaScript function that {}.",
    "Write unit tests for a Python function that {}.",
    "I need a Python class that {}. Please add docstrings.",
)

DIALOGUES = (
    "Good morning! How are you today?", "Can you help me plan my weekend?", "Tell me a joke.",
    "What can you do?", "Translate 'good evening, my friends' into French and German.",
    "Correct the grammar: 'She go to school yesterday and have fun.'",
    "Rewrite this politely: 'Send me the report now.'", "What is 17 times 23? Show your work.",
    "A train travels 120 kilometres in 1.5 hours. What is its average speed?",
    "If I have 12 apples and give away a third of them, how many are left?",
    "Give me a synonym and an antonym for each of: quick, happy, bright, calm.",
    "Suggest names for a small bakery near the sea.", "What should I cook with eggs, rice and tomatoes?",
    "How do I apologize to a friend I have let down?", "Write a thank-you note to my grandmother.",
    "Is it better to read on paper or on a screen?", "Name the planets in order from the sun.",
    "List the days of the week and the months of the year.", "What is the difference between weather and climate?",
    "Write a to-do list for moving house.",
)  # fmt: skip


def instructions(count: int, seed: int) -> list[str]:
    """``count`` different instructions in random order, about a fifth of them asking for code.

    Raises ``ValueError`` when there are not so many.
    """
    rng = random.Random(seed)
    talk = [form.format(subject) for form in QUESTIONS for subject in SUBJECTS]
    code = [form.format(task) for form in PROGRAMS for task in TASKS]
    rng.shuffle(talk)
    rng.shuffle(code)
    chosen = [*DIALOGUES, *code[: count // 5], *talk][:count]
    if len(chosen) < count:
        raise ValueError(f"there are {len(chosen)} instructions, not {count}")
    rng.shuffle(chosen)
    return chosen
